// UCX and libfabric: which, and what they were built for.
#include <dlfcn.h>

#include <cstdint>

#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "tools/doctor/facts/read.h"

namespace gradrail::tools::doctor {
namespace {

// Libraries of libfabric have some megabytes, also with debug information.
constexpr size_t kMaxLibraryBytes = size_t{256} << 20;

std::string file_of(void* function) {
  Dl_info about{};
  return dladdr(function, &about) != 0 && about.dli_fname != nullptr ? about.dli_fname : "";
}

absl::StatusOr<void*> find(const char* library, const char* function) {
  // The library is not closed: the path below is that of the loaded library, and the process ends after the answer.
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

absl::StatusOr<std::string> probe_ucx() {
  GRADRAIL_ASSIGN_OR_RETURN(void* const function, find("libucp.so.0", "ucp_get_version_string"));
  const char* const version = reinterpret_cast<const char* (*)()>(function)();
  return fmt::format("{} {} -\n", file_of(function), version);
}

absl::StatusOr<std::string> probe_libfabric() {
  GRADRAIL_ASSIGN_OR_RETURN(void* const function, find("libfabric.so.1", "fi_version"));
  const uint32_t version = reinterpret_cast<uint32_t (*)()>(function)();
  const std::string path = file_of(function);
  // fi_version() packs major and minor into 16 bits each (FI_VERSION).
  const char* const cuda = !names_cuda(path) ? "-" : has_cudart() ? "cuda" : "cuda-without-libcudart";
  return fmt::format("{} {}.{} {}\n", path, version >> 16, version & 0xffff, cuda);
}

/// Parts of an answer: path, version, support of CUDA. Without an answer, NAME_error has the reason.
std::vector<std::string> answer_words(const System& system, const std::string& name, const System::Ask& ask,
                                      Facts& host) {
  const absl::StatusOr<std::string> text = system.observe(name, ask);
  std::vector<std::string> words = text.ok() ? words_of(*text) : std::vector<std::string>{};
  for (std::string& word : words) word = printable(word);
  host.set(name + "_error", text.ok() ? "an answer that is none" : std::string(message_of(text.status())));
  if (words.size() < 3) return {};
  host.set(name, words[0]);
  host.set(name + "_version", words[1]);
  return words;
}

/// UCX has no query for what it was built for. Modules beside it hold its transports.
void read_ucx(const System& system, Facts& host) {
  const std::vector<std::string> words = answer_words(system, "ucx", probe_ucx, host);
  if (words.empty()) return;
  const std::string modules = words[0].substr(0, words[0].rfind('/')) + "/ucx";
  host.set("ucx_modules", modules);
  host.set_if("ucx_verbs", system.exists(modules + "/libuct_ib.so.0"));
  host.set_if("ucx_cuda", system.exists(modules + "/libuct_cuda.so.0"));
}

void read_libfabric(const System& system, Facts& host) {
  const std::vector<std::string> words = answer_words(system, "libfabric", probe_libfabric, host);
  if (words.empty()) return;
  const std::optional<Version> version = version_of(words[1]);
  host.set("libfabric_cuda", words[2].starts_with("cuda") ? words[2] : "");
  host.set_if("libfabric_before_1_20", version && *version < Version{1, 20, 0});
}

}  // namespace

void read_libraries(const System& system, Machine& machine) {
  read_ucx(system, machine.host);
  read_libfabric(system, machine.host);
}

}  // namespace gradrail::tools::doctor
