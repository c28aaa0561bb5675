// The options of a program in C, which may be those of an older header.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "gradrail/publish.h"

namespace gradrail::publish {
namespace {

using ::testing::HasSubstr;

TEST(PublishOptionsInC, MembersBehindAShorterStructAreNotRead) {
  gradrail_publish_options options = GRADRAIL_PUBLISH_OPTIONS_INIT;
  options.format = "no format";
  gradrail_publisher* publisher = nullptr;
  EXPECT_EQ(gradrail_publisher_open(&options, nullptr, 1, &publisher), GRADRAIL_INVALID_ARGUMENT);
  EXPECT_THAT(gradrail_last_error(), HasSubstr("no format"));
  options.struct_bytes = offsetof(gradrail_publish_options, format);
  EXPECT_EQ(gradrail_publisher_open(&options, nullptr, 1, &publisher), GRADRAIL_INVALID_ARGUMENT);
  EXPECT_THAT(gradrail_last_error(), HasSubstr("tensors"));
  gradrail_subscribe_options reader = GRADRAIL_SUBSCRIBE_OPTIONS_INIT;
  reader.follow = "nothing";
  reader.address = "no:address:at:all";
  gradrail_subscriber* subscriber = nullptr;
  EXPECT_EQ(gradrail_subscriber_open(&reader, &subscriber), GRADRAIL_INVALID_ARGUMENT);
  EXPECT_THAT(gradrail_last_error(), HasSubstr("follow 'nothing'"));
  reader.struct_bytes = offsetof(gradrail_subscribe_options, follow);
  EXPECT_EQ(gradrail_subscriber_open(&reader, &subscriber), GRADRAIL_INVALID_ARGUMENT);
  EXPECT_THAT(gradrail_last_error(), HasSubstr("no:address:at:all"));
}

TEST(PublishOptionsInC, AStructWithoutASizeIsRefused) {
  const gradrail_publish_options options{};
  const gradrail_subscribe_options reader{};
  gradrail_publisher* publisher = nullptr;
  gradrail_subscriber* subscriber = nullptr;
  EXPECT_EQ(gradrail_publisher_open(&options, nullptr, 1, &publisher), GRADRAIL_INVALID_ARGUMENT);
  EXPECT_THAT(gradrail_last_error(), HasSubstr("GRADRAIL_PUBLISH_OPTIONS_INIT"));
  EXPECT_EQ(gradrail_subscriber_open(&reader, &subscriber), GRADRAIL_INVALID_ARGUMENT);
  EXPECT_THAT(gradrail_last_error(), HasSubstr("GRADRAIL_SUBSCRIBE_OPTIONS_INIT"));
}

}  // namespace
}  // namespace gradrail::publish
