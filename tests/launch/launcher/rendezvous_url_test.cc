#include "launch/launcher/rendezvous_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradrail::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RendezvousUrl, EndpointsAndJob) {
  const auto url = parse_rendezvous("etcd://a,b:9,[::1]:7/mnist.run-2_x");
  ASSERT_TRUE(url.ok()) << url.status();
  EXPECT_THAT(url->endpoints, ElementsAre("http://a:2379", "http://b:9", "http://[::1]:7"));
  EXPECT_EQ(url->job, "mnist.run-2_x");
  EXPECT_THAT(parse_rendezvous("etcds://a:2222/j")->endpoints, ElementsAre("https://a:2222"));
  EXPECT_THAT(parse_rendezvous("https://[fe80::1]/j")->endpoints, ElementsAre("https://[fe80::1]:2379"));
}

TEST(RendezvousUrl, FirstTaskOfALauncher) {
  const auto url = parse_rendezvous("tcp://n9:29500");
  ASSERT_TRUE(url.ok()) << url.status();
  EXPECT_EQ(url->first_task, "n9:29500");
  EXPECT_FALSE(url->is_etcd());
  EXPECT_THAT(std::string(parse_tcp_rendezvous("n7:4000").status().message()),
              HasSubstr("the correct form is tcp://HOST:PORT"));
  EXPECT_FALSE(parse_tcp_rendezvous("etcd://h/j").ok());
  EXPECT_FALSE(parse_etcd_rendezvous("tcp://h:1").ok());
}

TEST(RendezvousUrl, WhatIsNoneIsRefused) {
  for (const char* text :
       {"", "etcd", "etcd:/h/j", "ftp://h/j", "etcd://h", "etcd://h/", "etcd:///j", "etcd://,/j", "etcd://h:70000/j",
        "tcp://h:70000", "etcd://h/a/b", "etcd://h/a b", "etcd://h/\xc3\xa4", "etcd://u@h:1:2/j"}) {
    const auto url = parse_rendezvous(text);
    EXPECT_EQ(url.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_FALSE(parse_rendezvous("etcd://h/" + std::string(1000, 'x')).ok());
}

}  // namespace
}  // namespace gradrail::launch
