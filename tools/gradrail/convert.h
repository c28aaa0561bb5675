#pragma once

#include <string>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

/// The flags of `gradrail convert` as typed.
struct ConvertFlags {
  /// Only "mnist" until now: each further data set is another value of `what`.
  std::string what;
  std::string data_dir;
  std::string out;
};

void add_convert_flags(CLI::App& command, ConvertFlags& flags);

/// `gradrail convert mnist --out FOLDER`: the TFRecord files of the tutorials from the IDX files.
/// Errors  INVALID_ARGUMENT names the flag; else as load_mnist and write_records.
absl::Status run_convert(const ConvertFlags& flags);

}  // namespace gradrail::tools
