// A UCX without CUDA that appears to have it, in front of the real one (LD_PRELOAD). Device memory of the simulated GPU
// is memory of the process. The real UCX uses it as such, after the stand-in checked the arguments.
#include <dlfcn.h>
#include <ucp/api/ucp.h>

#include <cstdio>
#include <cstdlib>
#include <set>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "tests/gpu/simulated/library_guard.h"

using namespace gradrail::simulated;

namespace {

template <typename Function>
Function next(const char* name) {
  auto* const found = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
  if (found == nullptr) stop(name, nullptr, "no UCX behind the simulated one");
  return found;
}

/// Registrations of device memory.
gradrail::Mutex mutex;
std::set<ucp_mem_h> of_gpus ABSL_GUARDED_BY(mutex);

/// GRADRAIL_SIMULATED_RDMA: "none", no device; "host", one that does not reach GPUs; else one that does.
bool rdma_is(const char* word) {
  const char* const set = std::getenv("GRADRAIL_SIMULATED_RDMA");
  return set != nullptr && std::string_view(set) == word;
}

/// A real UCX would ask the driver about missing values; this one was not built with it.
ucp_request_param_t checked(const char* call, const void* data, size_t bytes, const ucp_request_param_t& param) {
  if ((param.op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE) == 0) stop(call, data, "the kind of memory was not said");
  const bool cuda = param.memory_type == UCS_MEMORY_TYPE_CUDA;
  check_declared(call, data, bytes, cuda ? kAnyDevice : kHostMemory);
  ucp_request_param_t real = param;
  real.memory_type = UCS_MEMORY_TYPE_HOST;
  return real;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED ucs_status_t ucp_context_query(ucp_context_h context, ucp_context_attr_t* answer) {
  const ucs_status_t status = next<decltype(&ucp_context_query)>("ucp_context_query")(context, answer);
  if ((answer->field_mask & UCP_ATTR_FIELD_MEMORY_TYPES) != 0) answer->memory_types |= UCS_BIT(UCS_MEMORY_TYPE_CUDA);
  return status;
}

EXPORTED ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t* params, ucp_mem_h* handle) {
  ucp_mem_map_params_t real = *params;
  const bool said = (params->field_mask & UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE) != 0;
  const bool cuda = said && params->memory_type == UCS_MEMORY_TYPE_CUDA;
  check_declared("ucp_mem_map", params->address, params->length, cuda ? kAnyDevice : kHostMemory);
  if (said) real.memory_type = UCS_MEMORY_TYPE_HOST;
  const ucs_status_t status = next<decltype(&ucp_mem_map)>("ucp_mem_map")(context, &real, handle);
  const gradrail::MutexLock lock(mutex);
  if (status == UCS_OK && cuda) of_gpus.insert(*handle);
  if (status == UCS_OK && !cuda) of_gpus.erase(*handle);  // an address that came again
  return status;
}

/// The list of devices that gradrail reads.
EXPORTED void ucp_context_print_info(const ucp_context_h context, FILE* stream) {
  next<decltype(&ucp_context_print_info)>("ucp_context_print_info")(context, stream);
  if (!rdma_is("none")) std::fprintf(stream, "#      resource 99 :  md 99  dev 99  flags -- rc_verbs/simulated:1\n");
}

/// A device's key makes it longer: sockets have none.
EXPORTED ucs_status_t ucp_rkey_pack(ucp_context_h context, ucp_mem_h handle, void** packed, size_t* bytes) {
  const ucs_status_t status = next<decltype(&ucp_rkey_pack)>("ucp_rkey_pack")(context, handle, packed, bytes);
  const gradrail::MutexLock lock(mutex);
  if (status == UCS_OK && of_gpus.count(handle) != 0 && !rdma_is("host")) *bytes += sizeof(uint64_t);
  return status;
}

EXPORTED ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h endpoint, unsigned id, const void* header, size_t header_bytes,
                                          const void* data, size_t count, const ucp_request_param_t* param) {
  const ucp_request_param_t real = checked("ucp_am_send_nbx", data, count, *param);
  check_declared("ucp_am_send_nbx", header, header_bytes, kHostMemory);
  return next<decltype(&ucp_am_send_nbx)>("ucp_am_send_nbx")(endpoint, id, header, header_bytes, data, count, &real);
}

EXPORTED ucs_status_ptr_t ucp_am_recv_data_nbx(ucp_worker_h worker, void* descriptor, void* data, size_t count,
                                               const ucp_request_param_t* param) {
  const ucp_request_param_t real = checked("ucp_am_recv_data_nbx", data, count, *param);
  return next<decltype(&ucp_am_recv_data_nbx)>("ucp_am_recv_data_nbx")(worker, descriptor, data, count, &real);
}
