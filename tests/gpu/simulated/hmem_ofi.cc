// The exported functions: what is offered.
#include "tests/gpu/simulated/hmem_ofi.h"

#include <dlfcn.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/gpu/simulated/library_guard.h"

namespace gradrail::simulated {

thread_local int Inside::depth = 0;

namespace {

constexpr uint32_t kRealVersion = FI_VERSION(1, 17);
constexpr uint32_t kDmaBufVersion = FI_VERSION(1, 20);

template <typename Function>
Function next(const char* name) {
  auto* const found = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
  if (found == nullptr) stop(name, nullptr, "no libfabric behind the simulated one");
  return found;
}

Wrapped<fid_fabric, fi_ops_fabric>& fabrics() {
  static auto& all = *new Wrapped<fid_fabric, fi_ops_fabric>;
  return all;
}

void change(fi_info& info, bool add) {
  const auto set = [add](uint64_t& bits, uint64_t bit) { bits = add ? bits | bit : bits & ~bit; };
  set(info.caps, FI_HMEM);
  if (info.tx_attr != nullptr) set(info.tx_attr->caps, FI_HMEM);
  if (info.rx_attr != nullptr) set(info.rx_attr->caps, FI_HMEM);
  if (info.domain_attr == nullptr) return;
  info.domain_attr->mr_mode = add ? info.domain_attr->mr_mode | FI_MR_HMEM : info.domain_attr->mr_mode & ~FI_MR_HMEM;
}

int open_domain(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context) {
  fi_info* const real_info = stripped(info);
  int error = 0;
  {
    const Inside inside;
    error = fabrics().real(fabric).domain(fabric, real_info, domain, context);
  }
  fi_freeinfo(real_info);
  if (error == 0) wrap_domain(*domain);
  return error;
}

int open_passive(fid_fabric* fabric, fi_info* info, fid_pep** endpoint, void* context) {
  fi_info* const real_info = stripped(info);
  const Inside inside;
  const int error = fabrics().real(fabric).passive_ep(fabric, real_info, endpoint, context);
  fi_freeinfo(real_info);
  return error;
}

}  // namespace

bool has_dma_bufs() {
  const char* const version = std::getenv("GRADRAIL_SIMULATED_LIBFABRIC");
  return version != nullptr && std::string_view(version) == "1.20";
}

fi_info* stripped(const fi_info* info) {
  fi_info* const copy = fi_dupinfo(info);
  if (copy == nullptr) stop("fi_dupinfo", nullptr, "no memory");
  copy->handle = info->handle;
  change(*copy, false);
  return copy;
}

}  // namespace gradrail::simulated

using namespace gradrail::simulated;

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED uint32_t fi_version() { return has_dma_bufs() ? kDmaBufVersion : next<decltype(&fi_version)>("fi_version")(); }

/// A libfabric that is built with CUDA has this setting.
EXPORTED int fi_getparams(fi_param** params, int* count) {
  const int error = next<decltype(&fi_getparams)>("fi_getparams")(params, count);
  if (error != 0) return error;
  const auto known = static_cast<size_t>(*count);
  auto* const more = static_cast<fi_param*>(std::calloc(known + 2, sizeof(fi_param)));
  std::copy_n(*params, known, more);
  std::free(*params);
  more[known].name = strdup("FI_HMEM_CUDA_USE_GDRCOPY");
  more[known].help_string = strdup("of the simulation");
  *params = more;
  *count = static_cast<int>(known) + 1;
  return 0;
}

EXPORTED int fi_getinfo(uint32_t version, const char* node, const char* service, uint64_t flags, const fi_info* hints,
                        fi_info** list) {
  const auto real = next<decltype(&fi_getinfo)>("fi_getinfo");
  const bool asked = !Inside::is() && hints != nullptr && (hints->caps & FI_HMEM) != 0;
  const Inside inside;
  if (!asked) return real(std::min(version, kRealVersion), node, service, flags, hints, list);
  if (hints->domain_attr == nullptr || (hints->domain_attr->mr_mode & FI_MR_HMEM) == 0) return -FI_ENODATA;
  fi_info* const real_hints = stripped(hints);
  const int error = real(std::min(version, kRealVersion), node, service, flags, real_hints, list);
  fi_freeinfo(real_hints);
  for (fi_info* info = error == 0 ? *list : nullptr; info != nullptr; info = info->next) change(*info, true);
  return error;
}

EXPORTED int fi_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) {
  const auto real = next<decltype(&fi_fabric)>("fi_fabric");
  if (Inside::is()) return real(attributes, fabric, context);
  {
    const Inside inside;
    if (const int error = real(attributes, fabric, context); error != 0) return error;
  }
  fabrics().wrap(*fabric, (*fabric)->ops, [](fi_ops_fabric& operations) {
    operations.domain = open_domain;
    operations.passive_ep = open_passive;
  });
  return 0;
}
