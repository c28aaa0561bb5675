#include "tools/train/tutorial_flags.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "fmt/format.h"

namespace gradrail::tools {
namespace {

struct TutorialFlag {
  std::string_view name;  ///< with underscores; dashes are accepted as well
  std::string_view ours;
};

// Flags of the tutorials and examples of TensorFlow and Horovod that have another name here.
constexpr auto kTutorialFlags = std::to_array<TutorialFlag>({
    {"--base_lr", "--learning_rate"},
    {"--checkpoint_format", "--checkpoint_dir"},
    {"--checkpoint_path", "--checkpoint_dir"},
    {"--cross_replica_sync", "--mode sync"},
    {"--display_every", "--log_every"},
    {"--initial_learning_rate", "--learning_rate"},
    {"--input_data_dir", "--data_dir"},
    {"--issync", "--mode sync"},
    {"--keep_checkpoint_max", "--keep"},
    {"--local_parameter_device", "--ps_device"},
    {"--log_dir", "--logs_path"},
    {"--log_interval", "--log_every"},
    {"--log_steps", "--log_every"},
    {"--logdir", "--logs_path"},
    {"--lr", "--learning_rate"},
    {"--max_steps", "--epochs, passes over the data"},
    {"--max_to_keep", "--keep"},
    {"--model_dir", "--checkpoint_dir, and --logs_path for TensorBoard"},
    {"--num_batches", "--epochs, passes over the data"},
    {"--num_epochs", "--epochs"},
    {"--num_gpus", "--towers"},
    {"--num_ps", "--ps"},
    {"--num_replicas_to_aggregate", "--mode quorum:K,late=drop"},
    {"--num_workers", "--workers"},
    {"--output_dir", "--checkpoint_dir, and --logs_path for TensorBoard"},
    {"--parameter_servers", "--ps_hosts"},
    {"--replicas_to_aggregate", "--mode quorum:K,late=drop"},
    {"--save_checkpoints_secs", "--save_secs"},
    {"--save_checkpoints_steps", "--save_steps"},
    {"--save_interval_secs", "--save_secs"},
    {"--save_model_secs", "--save_secs"},
    {"--save_model_steps", "--save_steps"},
    {"--save_summaries_secs", "--log_every"},
    {"--save_summaries_steps", "--log_every"},
    {"--server_protocol", "--transport"},
    {"--summary_dir", "--logs_path"},
    {"--sync_replicas", "--mode sync"},
    {"--task_id", "--task_index"},
    {"--task_type", "--job_name"},
    {"--tb_logging", "--logs_path DIR"},
    {"--train_dir", "--checkpoint_dir, and --logs_path for TensorBoard"},
    {"--train_epochs", "--epochs"},
    {"--train_steps", "--epochs, passes over the data"},
    {"--training_epochs", "--epochs"},
    {"--training_steps", "--epochs, passes over the data"},
    {"--worker_index", "--task_index"},
});

/// "--num-gpus=2" becomes "--num_gpus"; empty: not a flag.
std::string flag_name(std::string_view argument) {
  if (!argument.starts_with("--")) return "";
  // "--flag=value" and "--flag value" are both common.
  std::string name(argument.substr(0, argument.find('=')));
  std::replace(name.begin() + 2, name.end(), '-', '_');
  return name;
}

}  // namespace

std::vector<std::string> hints_for_tutorial_flags(absl::Span<char* const> arguments) {
  std::vector<std::string> lines;
  for (const char* argument : arguments) {
    const auto* const found = std::find_if(kTutorialFlags.begin(), kTutorialFlags.end(),
                                           [&](const TutorialFlag& flag) { return flag.name == flag_name(argument); });
    if (found != kTutorialFlags.end())
      lines.push_back(fmt::format("{} is not a flag of gradrail: use {}", found->name, found->ours));
  }
  return lines;
}

}  // namespace gradrail::tools
