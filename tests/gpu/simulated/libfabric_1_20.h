#pragma once

// Additions of libfabric 1.20 to 1.17 that dma-bufs need, for hosts with older headers: put before a source file by
// -include. Written after fi_mr(3).

#define fi_mr_attr fi_mr_attr_1_17
#include <rdma/fi_domain.h>
#undef fi_mr_attr

#ifndef FI_MR_DMABUF
#define FI_MR_DMABUF (1ULL << 40)

struct fi_mr_dmabuf {
  int fd;
  uint64_t offset;
  size_t len;
  void* base_addr;
};

struct fi_mr_attr {
  union {
    const struct iovec* mr_iov;
    const struct fi_mr_dmabuf* dmabuf;
  };
  size_t iov_count;
  uint64_t access;
  uint64_t offset;
  uint64_t requested_key;
  void* context;
  size_t auth_key_size;
  uint8_t* auth_key;
  enum fi_hmem_iface iface;
  union {
    uint64_t reserved;
    int cuda;
    int ze;
    int neuron;
    int synapseai;
  } device;
  void* hmem_data;
};

inline int fi_mr_regattr(struct fid_domain* domain, const struct fi_mr_attr* attributes, uint64_t flags,
                         struct fid_mr** mr) {
  return domain->mr->regattr(&domain->fid, reinterpret_cast<const fi_mr_attr_1_17*>(attributes), flags, mr);
}
#endif
