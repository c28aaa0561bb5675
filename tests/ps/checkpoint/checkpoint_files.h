#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/types/span.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint.h"

namespace gradrail::ps {

/// In memory where possible: thousands of damaged files would otherwise wait for the disk.
inline std::string fast_parent() {
  std::error_code ignored;
  return std::filesystem::is_directory("/dev/shm", ignored) ? "/dev/shm"
                                                            : std::filesystem::temp_directory_path().string();
}

/// A folder that is removed at the end of the test.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& parent = fast_parent()) : path_(parent + "/gradrail-test-XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr) << path_;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// Random numbers in the given range of a model of one matrix and one vector.
inline Checkpoint make_checkpoint(OptimizerKind kind, ElementRange range, uint64_t elements, uint64_t seed) {
  Checkpoint checkpoint;
  checkpoint.header = {.optimizer = {.kind = kind, .learning_rate = 0.25f},
                       .range = range,
                       .global_step = 42,
                       .run = 0x0123456789abcdef,
                       .bucket_bytes = 256,
                       .bucket_versions = {41, 42, uint64_t{1} << 40}};
  checkpoint.header.schema.push_back({"dense/kernel", {static_cast<int64_t>(elements) - 1, 1}});
  checkpoint.header.schema.push_back({"scale", {}});
  Random random(seed);
  checkpoint.state.resize(static_cast<size_t>(state_vectors(kind)));
  const auto fill = [&](std::vector<float>& values) {
    values.resize(range.count);
    for (float& value : values) value = static_cast<float>(random.normal());
  };
  fill(checkpoint.parameters);
  for (std::vector<float>& state : checkpoint.state) fill(state);
  return checkpoint;
}

inline CheckpointView view(const Checkpoint& checkpoint) {
  CheckpointView v = {.header = &checkpoint.header, .parameters = checkpoint.parameters};
  for (const std::vector<float>& state : checkpoint.state) v.state.emplace_back(state);
  return v;
}

inline bool same(const Checkpoint& a, const Checkpoint& b) {
  const CheckpointHeader& x = a.header;
  const CheckpointHeader& y = b.header;
  return x.schema == y.schema && x.optimizer == y.optimizer && x.range == y.range && x.global_step == y.global_step &&
         x.saved_us == y.saved_us && x.run == y.run && x.shard_index == y.shard_index &&
         x.shard_count == y.shard_count && x.bucket_bytes == y.bucket_bytes && x.bucket_versions == y.bucket_versions &&
         a.parameters == b.parameters && a.state == b.state;
}

}  // namespace gradrail::ps
