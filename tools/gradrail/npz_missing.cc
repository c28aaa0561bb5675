// In place of npz.cc where libzip was not found.
#include "tools/gradrail/npz.h"

namespace gradrail::tools {

absl::Status check_npz() {
  return absl::UnimplementedError(
      "this program was built without libzip, which writes .npz files (libzip-dev; then configure and build again)");
}

absl::Status write_npz(const std::string&, absl::Span<const NamedArray>) { return check_npz(); }

}  // namespace gradrail::tools
