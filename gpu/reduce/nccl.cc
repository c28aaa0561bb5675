#include "gpu/reduce/nccl.h"

#include <memory>

#include "base/status.h"
#include "fmt/format.h"
#include "gpu/driver/library.h"

namespace gradrail::gpu {
namespace {

/// The first version with an all-reduce that also divides.
constexpr int kOldestVersion = 21000;

std::string version_words(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

absl::StatusOr<std::unique_ptr<const NcclLibrary>> load() {
  const absl::StatusOr<Library> library = Library::find({"libnccl.so.2"});
  if (!library.ok()) {
    return absl::FailedPreconditionError(fmt::format(
        "no NCCL ({}): install libnccl2, or set GRADRAIL_CUDA_LIBRARIES to its folder", message_of(library.status())));
  }
  auto nccl = std::make_unique<NcclLibrary>();
  const char* missing = nullptr;
#define GRADRAIL_FIND(result, name, parameters)                                        \
  nccl->api.name = reinterpret_cast<decltype(nccl->api.name)>(library->symbol(#name)); \
  if (nccl->api.name == nullptr) missing = #name;
  GRADRAIL_NCCL_FUNCTIONS(GRADRAIL_FIND)
#undef GRADRAIL_FIND
  if (missing != nullptr) {
    return absl::FailedPreconditionError(
        fmt::format("{} has no {}: install another version", library->name(), missing));
  }
  int version = 0;
  nccl->api.ncclGetVersion(&version);
  nccl->version = version_words(version);
  if (version >= kOldestVersion) return nccl;
  return absl::FailedPreconditionError(
      fmt::format("NCCL is {}, gradrail needs {} or newer", nccl->version, version_words(kOldestVersion)));
}

}  // namespace

absl::StatusOr<const NcclLibrary*> nccl_library() {
  static const absl::StatusOr<std::unique_ptr<const NcclLibrary>> library = load();
  if (!library.ok()) return library.status();
  return library->get();
}

absl::Status NcclLibrary::status(nccl::Result result, std::string_view operation) const {
  if (result == nccl::kSuccess || result == nccl::kInProgress) return absl::OkStatus();
  return absl::InternalError(fmt::format("NCCL {}: {}: {} (NCCL_DEBUG=WARN reports details)", version, operation,
                                         api.ncclGetErrorString(result)));
}

}  // namespace gradrail::gpu
