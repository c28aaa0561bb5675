#include "transport/ucx/endpoint.h"

#include <utility>

#include "transport/ucx/native_error.h"

namespace gradrail::transport::ucx {
namespace {

/// Bytes of padding behind an address. UCX reads it by the lengths inside it, not by its own length: the bytes behind
/// the end are harmless.
constexpr size_t kAddressPaddingBytes = 4096;

}  // namespace

absl::Status Endpoint::open(ucp_worker_h worker, std::string worker_address, ucp_err_handler_cb_t failed, void* user) {
  worker_address.resize(worker_address.size() + kAddressPaddingBytes);
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(worker_address.data());
  // UCX in this mode completes every operation also after the loss of the peer, and permits the forced close below.
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = failed, .arg = user};
  const ucs_status_t status = ucp_ep_create(worker, &params, &endpoint_);
  if (status != UCS_OK) {
    endpoint_ = nullptr;
    return native_error("reach the peer", status);
  }
  read_lanes();
  return absl::OkStatus();
}

void Endpoint::close() {
  if (endpoint_ == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  // The close without FORCE flushes first, which a lost peer would never complete.
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &param);
  if (UCS_PTR_IS_PTR(request)) close_request_ = request;
}

bool Endpoint::released() const {
  if (endpoint_ != nullptr) return false;
  return close_request_ == nullptr || ucp_request_check_status(close_request_) != UCS_INPROGRESS;
}

void Endpoint::reap() {
  if (close_request_ != nullptr) ucp_request_free(std::exchange(close_request_, nullptr));
}

}  // namespace gradrail::transport::ucx
