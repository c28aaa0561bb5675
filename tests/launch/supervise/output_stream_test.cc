#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "base/file_descriptor.h"
#include "launch/supervise/task_process.h"

namespace gradrail::launch {
namespace {

using ::testing::ElementsAre;
using Parts = OutputStream::Parts;

/// A stream, and the parts that it prints; '$' is the end of a line.
class OutputStreamTest : public ::testing::Test {
 protected:
  void open(Parts parts) {
    pipe_ = *open_pipe();
    stream_ = OutputStream(pipe_.reader.release(), parts);
  }
  void write(std::string_view text) { ASSERT_TRUE(write_all(pipe_.writer.get(), text)); }
  void take(std::string_view text) {
    write(text);
    stream_.take(print_);
  }
  /// Waits until the moment at which the stream has something to print.
  void wait_due() {
    ASSERT_NE(stream_.due(), TimePoint::max());
    std::this_thread::sleep_until(stream_.due());
    stream_.print_due(print_);
  }

  Pipe pipe_;
  OutputStream stream_;
  std::vector<std::string> parts_;
  const PrintPart print_ = [this](std::string_view part, bool ends_line) {
    parts_.push_back(std::string(part) + (ends_line ? "$" : ""));
  };
};

TEST_F(OutputStreamTest, PrintsLinesWhenTheyEnd) {
  open(Parts::kLines);
  take("one\n\ntwo\nthr");
  EXPECT_THAT(parts_, ElementsAre("one$", "$", "two$"));
  EXPECT_EQ(stream_.due(), TimePoint::max()) << "the supervisor reads whole lines";
  take("ee\n");
  EXPECT_THAT(parts_, ElementsAre("one$", "$", "two$", "three$"));
}

TEST_F(OutputStreamTest, PrintsAPromptBeforeItsEnd) {
  open(Parts::kPrompt);
  take("one\nname? ");
  EXPECT_THAT(parts_, ElementsAre("one$"));
  wait_due();
  EXPECT_THAT(parts_, ElementsAre("one$", "name? "));
  EXPECT_EQ(stream_.due(), TimePoint::max());
  take("\n");
  take("\r10%");
  take("\r20%");
  wait_due();
  take("\r30%\n");
  EXPECT_THAT(parts_, ElementsAre("one$", "name? ", "$", "\r10%\r20%", "\r30%$"));
}

TEST_F(OutputStreamTest, PrintsALongLineInParts) {
  for (const Parts kind : {Parts::kLines, Parts::kPrompt}) {
    open(kind);
    parts_.clear();
    std::string written, printed;
    for (int i = 0; i < 100; ++i) {
      // No pattern divides the size of a part.
      const std::string piece(10007, static_cast<char>('a' + i % 26));
      take(piece);
      written += piece;
    }
    take("\n");
    for (const std::string& part : parts_) {
      printed += part;
      EXPECT_LT(part.size(), size_t{128} << 10);
    }
    EXPECT_GT(parts_.size(), 5u);
    std::erase(printed, '$');
    EXPECT_EQ(printed, written);
    EXPECT_TRUE(parts_.back().ends_with('$'));
  }
}

TEST_F(OutputStreamTest, KeepsCharactersWholeAndBytesUnchanged) {
  open(Parts::kPrompt);
  take("caf\xc3");
  wait_due();
  EXPECT_THAT(parts_, ElementsAre("caf"));
  take("\xa9 \xff\xfe");
  wait_due();
  EXPECT_THAT(parts_, ElementsAre("caf", "\xc3\xa9 \xff")) << "the last byte may begin a character";
  wait_due();
  EXPECT_THAT(parts_, ElementsAre("caf", "\xc3\xa9 \xff", "\xfe"));
}

TEST_F(OutputStreamTest, PrintsHalfACharacterThatStaysAlone) {
  open(Parts::kPrompt);
  take("\xe2\x82");
  wait_due();
  EXPECT_THAT(parts_, ElementsAre("\xe2\x82"));
}

TEST_F(OutputStreamTest, EndsTheLastLine) {
  open(Parts::kPrompt);
  take("ready");
  wait_due();
  pipe_.writer.reset();
  stream_.take(print_);
  EXPECT_THAT(parts_, ElementsAre("ready", "$"));
  EXPECT_EQ(stream_.fd(), -1);
  EXPECT_EQ(stream_.due(), TimePoint::max());
  open(Parts::kPrompt);
  write("last");
  EXPECT_TRUE(stream_.end(print_)) << "the writer is open";
  EXPECT_THAT(parts_, ElementsAre("ready", "$", "last$"));
}

}  // namespace
}  // namespace gradrail::launch
