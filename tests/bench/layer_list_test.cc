#include "bench/suites/layer_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bench/layers/traffic_matrix.h"
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace gradrail::bench {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<LayerList> layers_from(const std::string& content) {
  // Tests of one program run at the same time, each in a process.
  static const ps::TemporaryFolder folder;
  const std::string path = folder.file("layers.txt");
  std::ofstream(path, std::ios::binary) << content;
  return read_layer_list(path);
}

TEST(LayerList, LinesAreLayersAndCommentsAreSkipped) {
  const absl::StatusOr<LayerList> list = layers_from("# a model\nfc 4096 1e3 # last layer\n\n conv 4 1000.5\r\n");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->name, "layers");
  ASSERT_EQ(list->layers.size(), 2U);
  EXPECT_EQ(list->layers[0].elements, 1024U);
  EXPECT_EQ(list->layers[1].ready_us, 1000.5);
  EXPECT_EQ(list->bytes(), 4100U);
}

TEST(LayerList, DamagedLinesAreRefused) {
  for (const auto& [line, words] :
       std::vector<std::pair<std::string, std::string>>{{"conv 10 0", ":2: bytes must be a positive multiple of 4"},
                                                        {"conv 1e13 0", "multiple of 4"},
                                                        {"conv nan 1", "must be `name bytes microseconds`"},
                                                        {"conv 16", "must be `name bytes microseconds`"},
                                                        {"conv 16 1 1", "must be `name bytes microseconds`"},
                                                        {"<html>", "must be `name bytes microseconds`"},
                                                        {"conv 16 -1", "microseconds must be 0 to 60000000"},
                                                        {"", "no layers"},
                                                        {"a 16 5\nb 16 4", ":3: ready before the line above"}}) {
    SCOPED_TRACE(line);
    const absl::Status status = layers_from("# a model\n" + line + "\n").status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(message_of(status), HasSubstr(words));
    EXPECT_THAT(message_of(status), HasSubstr("layers.txt"));
  }
}

TEST(LayerList, ATraceNamesItsConverter) {
  for (const std::string content : {"{\"traceEvents\": []}", " [{}]", "\xef\xbb\xbf{}", "\x1f\x8b\x08"})
    EXPECT_THAT(message_of(layers_from(content).status()),
                HasSubstr("layers.txt: no layer list; `gradrail-report convert FILE -o LIST` converts a trace"));
}

TEST(LayerList, AFolderIsRefusedAsOneAndAPipeIsRead) {
  const ps::TemporaryFolder folder;
  const absl::Status status = read_layer_list(folder.file("")).status();
  EXPECT_EQ(status, read_traffic_matrix(folder.file("")).status());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(pipe) << "a 4 0\n"; });
  EXPECT_EQ(read_layer_list(pipe)->layers.size(), 1U);
  writer.join();
  EXPECT_THAT(message_of(read_layer_list("/dev/null").status()), HasSubstr("/dev/null: no layers"));
}

TEST(LayerList, AMissingListNamesThoseThatComeAlong) {
  const absl::Status status = read_layer_list("nothing").status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(message_of(status), HasSubstr("no file nothing; lists that come along: "));
}

}  // namespace
}  // namespace gradrail::bench
