#include "launch/launcher/pmix.h"

#include <dlfcn.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::launch {
namespace {

// The binary interface of PMIx 2 to 5: the standard fixes these names, sizes and numbers.
struct Process {
  char space[256];
  uint32_t rank;
};
struct Value {
  uint16_t type;
  union {
    char* text;
    uint32_t number;
    uint64_t unused[3];
  };
};
static_assert(sizeof(Process) == 260 && sizeof(Value) == 32);
constexpr int kSuccess = 0;
constexpr uint16_t kText = 3;
constexpr uint16_t kUint32 = 14;
constexpr uint32_t kWholeJob = UINT32_MAX - 1;

/// The functions of the library. It is never closed: its threads may still be in their last instructions.
class Library {
 public:
  static absl::StatusOr<Library> open() {
    void* const handle = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return absl::UnavailableError(fmt::format("{} (package libpmix2)", dlerror()));
    Library library;
    const bool complete = library.find(handle, "PMIx_Init", library.init) &&
                          library.find(handle, "PMIx_Get", library.get) &&
                          library.find(handle, "PMIx_Finalize", library.finalize) &&
                          library.find(handle, "PMIx_Error_string", library.error_string);
    if (!complete) return absl::UnavailableError("libpmix.so.2 lacks functions of PMIx 2");
    return library;
  }

  absl::Status error(const char* call, int code) const {
    return absl::UnavailableError(fmt::format("{}: {}", call, error_string(code)));
  }

  int (*init)(Process*, void*, size_t) = nullptr;
  int (*get)(const Process*, const char*, const void*, size_t, Value**) = nullptr;
  int (*finalize)(const void*, size_t) = nullptr;
  const char* (*error_string)(int) = nullptr;

 private:
  template <class Function>
  static bool find(void* handle, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    return function != nullptr;
  }
};

/// The connection of this process to its server. A process that ends without finalize() fails its whole job.
class Connection {
 public:
  explicit Connection(const Library& library) : library_(library) {}
  ~Connection() {
    if (connected_) library_.finalize(nullptr, 0);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  absl::Status connect() {
    const int code = library_.init(&self_, nullptr, 0);
    connected_ = code == kSuccess;
    return connected_ ? absl::OkStatus() : library_.error("PMIx_Init", code);
  }

  absl::StatusOr<uint32_t> number(const char* key) const {
    GRADRAIL_ASSIGN_OR_RETURN(const Value value, read(kWholeJob, key));
    if (value.type == kUint32) return value.number;
    return absl::UnavailableError(fmt::format("PMIx: {} is not a number", key));
  }

  absl::StatusOr<std::string> text(uint32_t rank, const char* key) const {
    GRADRAIL_ASSIGN_OR_RETURN(const Value value, read(rank, key));
    if (value.type != kText || value.text == nullptr)
      return absl::UnavailableError(fmt::format("PMIx: {} is not a text", key));
    std::string copy = value.text;
    std::free(value.text);
    return copy;
  }

 private:
  absl::StatusOr<Value> read(uint32_t rank, const char* key) const {
    Process process = self_;
    process.rank = rank;
    Value* found = nullptr;
    const int code = library_.get(&process, key, nullptr, 0, &found);
    if (code != kSuccess || found == nullptr) return library_.error(fmt::format("PMIx_Get {}", key).c_str(), code);
    const Value value = *found;
    std::free(found);
    return value;
  }

  const Library& library_;
  Process self_ = {};
  bool connected_ = false;
};

/// Keeps signals away from the threads that the library starts.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

absl::StatusOr<PmixJob> query_pmix() {
  const BlockedSignals blocked;
  GRADRAIL_ASSIGN_OR_RETURN(const Library library, Library::open());
  Connection connection(library);
  GRADRAIL_RETURN_IF_ERROR(connection.connect());
  PmixJob job;
  GRADRAIL_ASSIGN_OR_RETURN(job.size, connection.number("pmix.job.size"));
  GRADRAIL_ASSIGN_OR_RETURN(job.local_size, connection.number("pmix.local.size"));
  GRADRAIL_ASSIGN_OR_RETURN(job.first_host, connection.text(0, "pmix.hname"));
  return job;
}

}  // namespace gradrail::launch
