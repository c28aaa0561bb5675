#pragma once

#include <rdma/fabric.h>

#include <map>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

struct fid_domain;
struct fid_ep;

namespace gradrail::simulated {

// A libfabric without CUDA that appears to have it, in front of the real one (LD_PRELOAD). Device memory of the
// simulated GPU is memory of the process. The real libfabric registers it as such, after the stand-in checked the
// arguments.

/// Replaces some functions of an object with our own and keeps the real ones.
template <typename Object, typename Operations>
class Wrapped {
 public:
  /// `replace` changes a copy of the object's operations.
  template <typename Replace>
  void wrap(Object* object, Operations*& operations, const Replace& replace) {
    auto* const copy = new Operations(*operations);  // kept for the object's lifetime, because its end is not reported
    {
      const MutexLock lock(mutex_);
      real_[object] = operations;
    }
    replace(*copy);
    operations = copy;
  }
  const Operations& real(const Object* object) {
    const MutexLock lock(mutex_);
    return *real_.at(object);
  }

 private:
  Mutex mutex_;
  std::map<const Object*, const Operations*> real_ ABSL_GUARDED_BY(mutex_);
};

/// While libfabric itself runs, on this thread: layers of it use each other, and none of that is ours to look at.
class Inside {
 public:
  Inside() { ++depth; }
  ~Inside() { --depth; }
  static bool is() { return depth > 0; }

 private:
  static thread_local int depth;
};

/// `info` without what the real libfabric has not.
fi_info* stripped(const fi_info* info);

void wrap_domain(fid_domain* domain);
void wrap_endpoint(fid_ep* endpoint);

/// Whether GRADRAIL_SIMULATED_LIBFABRIC requests the version with dma-bufs.
bool has_dma_bufs();

/// Descriptors that stand for registered device memory.
void add_descriptor(const void* descriptor);
bool is_gpu_descriptor(const void* descriptor);

}  // namespace gradrail::simulated
