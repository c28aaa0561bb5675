#include "tools/gradrail/convert.h"

#include "CLI/CLI.hpp"
#include "base/status.h"
#include "fmt/format.h"
#include "worker/data/dataset.h"
#include "worker/data/records.h"

namespace gradrail::tools {

void add_convert_flags(CLI::App& command, ConvertFlags& flags) {
  command.add_option("DATASET", flags.what, "the data set")->required()->check(CLI::IsMember({"mnist"}));
  command.add_option("--data_dir,--data-dir", flags.data_dir,
                     "folder with the four IDX files; default: the built-in MNIST");
  command.add_option("--out", flags.out, "folder for train.tfrecords, validation.tfrecords, test.tfrecords")
      ->required();
}

absl::Status run_convert(const ConvertFlags& flags) {
  std::string folder = flags.data_dir;
  if (folder.empty()) {
    GRADRAIL_ASSIGN_OR_RETURN(folder, worker::default_mnist_folder());
  }
  GRADRAIL_ASSIGN_OR_RETURN(const worker::MnistData data, worker::load_mnist(folder));
  GRADRAIL_RETURN_IF_ERROR(worker::write_records(data, flags.out));
  fmt::print("{}: {} + {} + {} examples (train, validation, test)\n", flags.out, data.train.count,
             data.validation.count, data.test.count);
  return absl::OkStatus();
}

}  // namespace gradrail::tools
