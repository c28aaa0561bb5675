#include "bench/layers/traffic_matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/ps/checkpoint/checkpoint_files.h"

namespace gradrail::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<TrafficMatrix> matrix_from(const std::string& content) {
  static const ps::TemporaryFolder folder;
  const std::string path = folder.file("traffic_matrix_test.csv");
  std::ofstream(path, std::ios::binary) << content;
  return read_traffic_matrix(path);
}

TEST(TrafficMatrix, RowsAreWorkersAndColumnsAreShards) {
  const TrafficMatrix expected = {{256, 4096, 0}, {512, 0, 1 << 20}};
  for (const char* text : {"256,4K,0\n512,0,1M\n", "# a, b, c\r\n 256, 4096, 0\r\n\r\n512, 0, 1M # last\r\n",
                           "# bytes\n256 4K 0\n257\t0 1M"})
    EXPECT_EQ(matrix_from(text).value(), expected) << text;
}

TEST(TrafficMatrix, MistakesNameRowAndColumn) {
  const auto error = [](const std::string& text) { return std::string(matrix_from(text).status().message()); };
  EXPECT_THAT(error("# w0,w1\n256,0\n\n256,x\n"),
              HasSubstr("traffic_matrix_test.csv: row 2 (line 4), column 2: 'x' is no"));
  EXPECT_THAT(error("256,\n"), HasSubstr("row 1 (line 1), column 2: '' is no number"));
  EXPECT_THAT(error("1,-1\n"), HasSubstr("column 2: '-1'"));
  EXPECT_THAT(error("1,2000G\n"), HasSubstr("column 2: '2000G'"));
  EXPECT_THAT(error("1,2\n3\n"), HasSubstr("row 2 (line 2) has 1 column, and row 1 has 2"));
  EXPECT_THAT(error("0,0\n"), HasSubstr("all entries are 0"));
  EXPECT_THAT(error("64KB,16KB\n32K,1K\n"), HasSubstr("row 1 (line 1), column 1: '64KB' is no number"));
  EXPECT_THAT(error("# a,b\n"), HasSubstr("no row of numbers"));
  EXPECT_THAT(error("a,b\n256,0\n"), HasSubstr("row 1 (line 1), column 1: 'a'"));
  EXPECT_EQ(read_traffic_matrix("/none/x").status().code(), absl::StatusCode::kNotFound);
}

TEST(TrafficMatrix, AShardHasOnePieceForEachSize) {
  const TrafficMatrix matrix = {{256, 0}, {1024, 512}, {256, 512}};
  EXPECT_THAT(pieces_of(matrix), ElementsAre(TrafficPiece{0, 0, 256}, TrafficPiece{0, 256, 768},
                                             TrafficPiece{1, 0, 512}, TrafficPiece{1, 512, 512}));
}

}  // namespace
}  // namespace gradrail::bench
