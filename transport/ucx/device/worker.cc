#include "transport/ucx/device/worker.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "transport/rdma_devices.h"
#include "transport/ucx/device/lanes.h"
#include "transport/ucx/device/network_device.h"
#include "transport/ucx/device/settings.h"
#include "transport/ucx/native_error.h"

namespace gradrail::transport::ucx {
namespace {

absl::Status configure(ucp_config_t* config, const OpenOptions& options, const GpuHost& gpu) {
  for (const Setting& setting : settings(options, rdma_ports(), gpu)) {
    for (const std::string& name : {setting.name, setting.short_name()}) {
      const ucs_status_t status = ucp_config_modify(config, name.c_str(), setting.value.c_str());
      if (status != UCS_OK) return native_error(fmt::format("set {} to {}", name, setting.value), status);
    }
  }
  return absl::OkStatus();
}

absl::Status opening_error(const OpenOptions& options, ucs_status_t status) {
  const absl::Status error = native_error("open devices", status);
  if (status != UCS_ERR_NO_DEVICE || !options.rdma_only) return error;
  return {error.code(), fmt::format("{}: {}", message_of(error), describe_rdma_devices())};
}

absl::StatusOr<ucp_context_h> init(const OpenOptions& options, const GpuHost& gpu) {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return native_error("read the UCX_* variables", status);
  ucp_context_h context = nullptr;
  absl::Status result = configure(config, options, gpu);
  if (result.ok()) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    status = ucp_init(&params, config, &context);
    if (status != UCS_OK) result = opening_error(options, status);
  }
  ucp_config_release(config);
  if (!result.ok()) return result;
  return context;
}

GpuTransferSupport request_gpu_support(ucp_context_h context, const GpuHost& gpu, bool rdma) {
  ucp_context_attr_t answer{};
  answer.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  GpuTransferSupport ways = gpu_transfers(ucp_context_query(context, &answer) == UCS_OK ? answer.memory_types : 0, gpu);
  const bool takes = ways.takes(NicGpuTransfer::dma_buf) || ways.takes(NicGpuTransfer::peer_memory);
  if (rdma || !takes) return ways;
  return GpuTransferSupport::none(
      "moves host memory only: UCX uses no RDMA device here, and would copy GPU memory through the host");
}

// A device's queues are in locked memory. Without enough of it UCX still opens and then retries without end, while no
// message arrives. The check here reports the cause before that.
absl::Status check_locked_memory(ucp_context_h context) {
  constexpr size_t kQueueBytes = 32 << 20;  // ud's receive buffers alone are 20 MiB
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY) return absl::OkStatus();
  void* const memory = mmap(nullptr, kQueueBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return absl::ResourceExhaustedError("ucx: no memory for the device's queues");
  ucp_mem_map_params_t params{};
  params.field_mask =
      UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = memory;
  params.length = kQueueBytes;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  ucp_mem_h handle = nullptr;
  const ucs_status_t status = ucp_mem_map(context, &params, &handle);
  if (status == UCS_OK) ucp_mem_unmap(context, handle);
  munmap(memory, kQueueBytes);
  return status == UCS_OK ? absl::OkStatus() : registration_error(kQueueBytes, status);
}

}  // namespace

absl::StatusOr<Worker> Worker::open(const OpenOptions& options) {
  const GpuHost gpu = GpuHost::look();
  tame_library(gpu);
  GRADRAIL_ASSIGN_OR_RETURN(const ucp_context_h context, init(options, gpu));
  Worker worker(context);
  std::string resources;
  const bool rdma = has_rdma_resource(context, &resources);
  if (rdma) {
    GRADRAIL_RETURN_IF_ERROR(check_locked_memory(context));
  } else if (options.rdma_only) {
    return absl::UnavailableError(
        fmt::format("ucx: no RDMA device among the resources of UCX ({}): {}; see UCX_TLS and UCX_NET_DEVICES, and "
                    "`ucx_info -d` for a UCX without verbs",
                    resources, describe_rdma_devices()));
  }
  worker.gpu_ = request_gpu_support(context, gpu, rdma);
  worker.rdma_ = rdma;
  GRADRAIL_RETURN_IF_ERROR(worker.create_worker());
  return worker;
}

absl::Status Worker::create_worker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // One thread runs it at a time, not always the same one.
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = ucp_worker_create(context_, &params, &worker_);
  if (status != UCS_OK) {
    worker_ = nullptr;
    return native_error("open a worker", status);
  }
  status = ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return native_error("no transport of UCX_TLS can wake a waiting thread", status);
  return absl::OkStatus();
}

Worker::Worker(Worker&& other) noexcept
    : context_(std::exchange(other.context_, nullptr)),
      worker_(std::exchange(other.worker_, nullptr)),
      event_fd_(other.event_fd_),
      gpu_(std::move(other.gpu_)),
      rdma_(other.rdma_) {}

Worker::~Worker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

absl::StatusOr<std::string> Worker::address() const {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  const ucs_status_t status = ucp_worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) return native_error("read the worker's address", status);
  std::string copy(reinterpret_cast<const char*>(address), bytes);
  ucp_worker_release_address(worker_, address);
  return copy;
}

}  // namespace gradrail::transport::ucx
