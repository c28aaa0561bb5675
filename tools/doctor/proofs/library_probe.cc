#include "tools/doctor/proofs/library_probe.h"

#include <dlfcn.h>

#include <cstdint>

#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

// Libraries of libfabric have some megabytes, also with debug information.
constexpr size_t kMaxLibraryBytes = size_t{256} << 20;

std::string file_of(void* function) {
  Dl_info about{};
  return dladdr(function, &about) != 0 && about.dli_fname != nullptr ? about.dli_fname : "";
}

absl::StatusOr<void*> find(const char* library, const char* function) {
  // Not closed: the path below comes from the loaded library, and the process ends after the answer.
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return absl::NotFoundError(dlerror());
  void* const found = dlsym(handle, function);
  if (found == nullptr) return absl::NotFoundError(fmt::format("{} has no {}", library, function));
  return found;
}

/// libfabric has no function for this; a provider that can copy to a GPU names the call.
bool names_cuda(const std::string& path) {
  // The string table has the name also if the library loads CUDA at run time (--enable-cuda-dlopen).
  const absl::StatusOr<std::string> bytes = read_file(path, kMaxLibraryBytes);
  return bytes.ok() && bytes->find("cudaMemcpy") != std::string::npos;
}

/// libfabric loads the runtime by its name without a version, or was linked with one, which is loaded now.
bool has_cudart() {
  for (const char* loaded : {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}) {
    if (dlopen(loaded, RTLD_NOW | RTLD_NOLOAD) != nullptr) return true;
  }
  return dlopen("libcudart.so", RTLD_NOW | RTLD_LOCAL) != nullptr;
}

absl::StatusOr<std::string> probe_ucx_live() {
  GRADRAIL_ASSIGN_OR_RETURN(void* const function, find("libucp.so.0", "ucp_get_version_string"));
  const char* const version = reinterpret_cast<const char* (*)()>(function)();
  return fmt::format("{} {} -\n", file_of(function), version);
}

absl::StatusOr<std::string> probe_libfabric_live() {
  GRADRAIL_ASSIGN_OR_RETURN(void* const function, find("libfabric.so.1", "fi_version"));
  const uint32_t version = reinterpret_cast<uint32_t (*)()>(function)();
  const std::string path = file_of(function);
  // fi_version() packs major and minor into 16 bits each (FI_VERSION).
  const char* const cuda = !names_cuda(path) ? "-" : has_cudart() ? "cuda" : "cuda-without-libcudart";
  return fmt::format("{} {}.{} {}\n", path, version >> 16, version & 0xffff, cuda);
}

absl::StatusOr<LibraryAnswer> parse(const absl::StatusOr<std::string>& text) {
  if (!text.ok()) return text.status();
  const std::vector<std::string> words = words_of(*text);
  if (words.size() < 3) return absl::UnknownError("an answer that is none");
  return LibraryAnswer{.path = printable(words[0]),
                       .version = printable(words[1]),
                       .cuda = words[2].starts_with("cuda"),
                       .lacks_cudart = words[2] == "cuda-without-libcudart"};
}

}  // namespace

absl::StatusOr<LibraryAnswer> probe_ucx(System& system) { return parse(system.observe("ucx", probe_ucx_live)); }

absl::StatusOr<LibraryAnswer> probe_libfabric(System& system) {
  return parse(system.observe("libfabric", probe_libfabric_live));
}

}  // namespace gradrail::tools::doctor
