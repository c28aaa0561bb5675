// Registrations and transfers.
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <cstdlib>
#include <set>

#include "tests/gpu/simulated/hmem_ofi.h"
#include "tests/gpu/simulated/library_guard.h"

namespace gradrail::simulated {
namespace {

/// As in libfabric 1.20: its fi_mr_attr has a pointer to this structure where 1.17 has a pointer to the iovec.
constexpr uint64_t kDmaBufFlag = 1ULL << 40;
struct DmaBufWords {
  int fd;
  uint64_t offset;
  size_t bytes;
  void* base;
};
constexpr uintptr_t kPage = 4096;

template <typename Object, typename Operations>
Wrapped<Object, Operations>& wrapped() {
  static auto& all = *new Wrapped<Object, Operations>;
  return all;
}
auto& domains() { return wrapped<fid_domain, fi_ops_domain>(); }
auto& registrars() { return wrapped<fid_domain, fi_ops_mr>(); }
auto& transfers() { return wrapped<fid_ep, fi_ops_rma>(); }
auto& options() { return wrapped<fid, fi_ops_ep>(); }
auto& messages() { return wrapped<fid_ep, fi_ops_msg>(); }

struct Descriptors {
  Mutex mutex;
  std::set<const void*> of_gpus ABSL_GUARDED_BY(mutex);
};
Descriptors& descriptors() {
  static auto& all = *new Descriptors;
  return all;
}

const fi_ops_mr& registrar(fid* domain) { return registrars().real(reinterpret_cast<fid_domain*>(domain)); }

int register_host(fid* domain, const void* data, size_t bytes, uint64_t access, uint64_t offset, uint64_t key,
                  uint64_t flags, fid_mr** mr, void* context) {
  check_descriptors();
  check_declared("fi_mr_reg", data, bytes, kHostMemory);
  const Inside inside;
  return registrar(domain).reg(domain, data, bytes, access, offset, key, flags, mr, context);
}

int register_vector(fid* domain, const iovec* pieces, size_t count, uint64_t access, uint64_t offset, uint64_t key,
                    uint64_t flags, fid_mr** mr, void* context) {
  for (size_t i = 0; i < count; ++i) check_declared("fi_mr_regv", pieces[i].iov_base, pieces[i].iov_len, kHostMemory);
  const Inside inside;
  return registrar(domain).regv(domain, pieces, count, access, offset, key, flags, mr, context);
}

/// The memory behind a dma-buf, after a check of all that its description states.
iovec checked(const DmaBufWords& words) {
  auto* const data = static_cast<char*>(words.base) + words.offset;
  if (!has_dma_bufs()) stop("FI_MR_DMABUF", data, "this libfabric does not know it");
  if (reinterpret_cast<uintptr_t>(words.base) % kPage != 0) stop("FI_MR_DMABUF", data, "base_addr is not a page's");
  if (words.offset >= kPage) stop("FI_MR_DMABUF", data, "an offset of more than a page");
  check_dma_buf(words.fd, data);
  return {data, words.bytes};
}

int register_with_attributes(fid* domain, const fi_mr_attr* attributes, uint64_t flags, fid_mr** mr) {
  const bool dma_buf = (flags & kDmaBufFlag) != 0;
  const bool cuda = attributes->iface == FI_HMEM_CUDA;
  if (attributes->iov_count != 1 || (dma_buf && !cuda)) stop("fi_mr_regattr", nullptr, "not what gradrail does");
  const auto& words = *reinterpret_cast<const DmaBufWords*>(attributes->mr_iov);  // in the place of the iovec
  check_descriptors(dma_buf ? words.fd : -1);
  const iovec piece = dma_buf ? checked(words) : *attributes->mr_iov;
  check_declared("fi_mr_regattr", piece.iov_base, piece.iov_len, cuda ? attributes->device.cuda : kHostMemory);
  fi_mr_attr real = *attributes;
  real.mr_iov = &piece;
  real.iface = FI_HMEM_SYSTEM;
  real.device.reserved = 0;
  const Inside inside;
  const int error = registrar(domain).regattr(domain, &real, flags & ~kDmaBufFlag, mr);
  if (error == 0 && cuda) add_descriptor(fi_mr_desc(*mr));
  return error;
}

void check_transfer(const char* call, const void* data, size_t bytes, const void* descriptor) {
  check_descriptors();
  check_declared(call, data, bytes, is_gpu_descriptor(descriptor) ? kAnyDevice : kHostMemory);
}

ssize_t read(fid_ep* endpoint, void* data, size_t bytes, void* descriptor, fi_addr_t from, uint64_t address,
             uint64_t key, void* context) {
  check_transfer("fi_read", data, bytes, descriptor);
  const Inside inside;
  return transfers().real(endpoint).read(endpoint, data, bytes, descriptor, from, address, key, context);
}

ssize_t write(fid_ep* endpoint, const void* data, size_t bytes, void* descriptor, fi_addr_t to, uint64_t address,
              uint64_t key, void* context) {
  check_transfer("fi_write", data, bytes, descriptor);
  const Inside inside;
  return transfers().real(endpoint).write(endpoint, data, bytes, descriptor, to, address, key, context);
}

ssize_t write_data(fid_ep* endpoint, const void* data, size_t bytes, void* descriptor, uint64_t immediate, fi_addr_t to,
                   uint64_t address, uint64_t key, void* context) {
  check_transfer("fi_writedata", data, bytes, descriptor);
  const Inside inside;
  return transfers().real(endpoint).writedata(endpoint, data, bytes, descriptor, immediate, to, address, key, context);
}

ssize_t write_message(fid_ep* endpoint, const fi_msg_rma* message, uint64_t flags) {
  for (size_t i = 0; i < message->iov_count; ++i) {
    check_transfer("fi_writemsg", message->msg_iov[i].iov_base, message->msg_iov[i].iov_len,
                   message->desc == nullptr ? nullptr : message->desc[i]);
  }
  const Inside inside;
  return transfers().real(endpoint).writemsg(endpoint, message, flags);
}

ssize_t send(fid_ep* endpoint, const void* data, size_t bytes, void* descriptor, fi_addr_t to, void* context) {
  check_declared("fi_send", data, bytes, kHostMemory);
  const Inside inside;
  return messages().real(endpoint).send(endpoint, data, bytes, descriptor, to, context);
}

/// Answers like verbs, which supports only peer to peer, or like a provider that would copy.
int set_option(fid* endpoint, int level, int name, const void* value, size_t bytes) {
  if (level != FI_OPT_ENDPOINT || name != FI_OPT_FI_HMEM_P2P) {
    return options().real(endpoint).setopt(endpoint, level, name, value, bytes);
  }
  if (*static_cast<const int*>(value) != FI_HMEM_P2P_REQUIRED) stop("FI_OPT_FI_HMEM_P2P", nullptr, "not required");
  return std::getenv("GRADRAIL_SIMULATED_P2P") == nullptr ? -FI_ENOPROTOOPT : -FI_EOPNOTSUPP;
}

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** endpoint, void* context) {
  fi_info* const real_info = stripped(info);
  int error = 0;
  {
    const Inside inside;
    error = domains().real(domain).endpoint(domain, real_info, endpoint, context);
  }
  fi_freeinfo(real_info);
  if (error == 0) wrap_endpoint(*endpoint);
  return error;
}

}  // namespace

void add_descriptor(const void* descriptor) {
  const MutexLock lock(descriptors().mutex);
  descriptors().of_gpus.insert(descriptor);
}

bool is_gpu_descriptor(const void* descriptor) {
  const MutexLock lock(descriptors().mutex);
  return descriptor != nullptr && descriptors().of_gpus.count(descriptor) != 0;
}

void wrap_domain(fid_domain* domain) {
  domains().wrap(domain, domain->ops, [](fi_ops_domain& operations) { operations.endpoint = open_endpoint; });
  registrars().wrap(domain, domain->mr, [](fi_ops_mr& operations) {
    operations.reg = register_host;
    operations.regv = register_vector;
    operations.regattr = register_with_attributes;
  });
}

void wrap_endpoint(fid_ep* endpoint) {
  transfers().wrap(endpoint, endpoint->rma, [](fi_ops_rma& operations) {
    operations.read = read;
    operations.write = write;
    operations.writedata = write_data;
    operations.writemsg = write_message;
  });
  options().wrap(&endpoint->fid, endpoint->ops, [](fi_ops_ep& operations) { operations.setopt = set_option; });
  messages().wrap(endpoint, endpoint->msg, [](fi_ops_msg& operations) { operations.send = send; });
}

}  // namespace gradrail::simulated
