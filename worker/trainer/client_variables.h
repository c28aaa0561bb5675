#pragma once

#include <string>
#include <vector>

#include "gradrail/client.h"
#include "worker/trainer/variables.h"

namespace gradrail::worker {

/// Variables at the parameter servers.
class ClientVariables final : public Variables {
 public:
  explicit ClientVariables(Client& client) : client_(client) {}

  const Schema& schema() const override { return client_.schema(); }
  absl::Span<float> parameters(size_t tensor_index) override { return client_.parameters(tensor_index); }
  absl::Span<float> gradients(size_t tensor_index) override { return client_.gradients(tensor_index); }
  absl::Status start() override { return client_.start(); }
  void ready(size_t tensor_index) override { client_.ready(tensor_index); }
  void exchange() override { client_.exchange(); }
  void progress() override { client_.device().progress(); }
  absl::Status wait() override { return client_.wait(); }
  uint64_t global_step() const override { return client_.global_step(); }
  uint64_t position() const override { return client_.position(); }
  bool is_chief() const override { return client_.is_chief(); }
  absl::Status finish_steps() override { return client_.finish_steps(); }
  absl::Status pull_final() override;
  absl::Status pull() override { return client_.pull(); }
  absl::Status fetch() override { return client_.device().fetch(); }
  bool device_failed() const override { return client_.device().has_failed(); }
  bool saves_checkpoints() const override { return client_.checkpoints().is_enabled(); }
  absl::Status begin_checkpoint() override { return client_.checkpoints().begin(); }
  bool checkpoint_under_way() const override { return client_.checkpoints().is_under_way(); }
  absl::StatusOr<std::vector<std::string>> finish_checkpoint() override { return client_.checkpoints().finish(); }
  absl::StatusOr<std::vector<std::string>> save_checkpoint() override { return client_.checkpoints().save(); }
  std::vector<std::string> summary(bool verbose) const override;
  absl::Status leave() override { return client_.leave(); }
  absl::StatusOr<bool> leave_unless_last() override { return client_.leave_unless_last(); }
  absl::Status give_up(const std::string& why) override { return client_.give_up(why); }

 private:
  Client& client_;
};

}  // namespace gradrail::worker
