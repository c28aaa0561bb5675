// Which transport two tasks take, and what they say about the others.
#include "transport/negotiate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "transport/registry.h"

namespace gradrail::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<PeerTransport> kBoth = {{"shm", ""}, {"tcp", ""}};

TEST(TransportOrder, AutoNamesAllThatReachAnotherProcess) {
  const std::vector<std::string> order = *parse_transport_order("auto");
  EXPECT_THAT(order, ElementsAre("shm", "ucx", "ofi", "tcp"));
}

TEST(TransportOrder, AsTyped) {
  EXPECT_THAT(*parse_transport_order("tcp,shm"), ElementsAre("tcp", "shm"));
  EXPECT_THAT(*parse_transport_order("tcp,shm,tcp"), ElementsAre("tcp", "shm"));
}

TEST(TransportOrder, Refusals) {
  for (const char* text : {"", ",", "tcp,,shm", "carrier-pigeon", "TCP", " tcp", "auto,tcp"}) {
    const absl::Status refused = parse_transport_order(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << '"' << text << '"' << ": " << refused;
  }
  EXPECT_THAT(std::string(message_of(parse_transport_order("x").status())),
              HasSubstr("no transport 'x' between tasks (there are auto, shm"));
}

std::vector<std::string> reasons(const std::vector<Candidate>& candidates) {
  std::vector<std::string> all;
  for (const Candidate& candidate : candidates) all.push_back(candidate.name + ":" + candidate.refused);
  return all;
}

TEST(TransportChoice, OneHostTakesAll) {
  EXPECT_THAT(reasons(rank_candidates({"shm", "tcp"}, kBoth, "h", "h")), ElementsAre("shm:", "tcp:"));
}

TEST(TransportChoice, OtherHostRefusesSharedMemory) {
  EXPECT_THAT(reasons(rank_candidates({"shm", "tcp"}, kBoth, "h", "other")),
              ElementsAre(HasSubstr("not on the same host"), "tcp:"));
}

TEST(TransportChoice, EveryTransportOfTheOrderIsAnsweredInItsOrder) {
  EXPECT_THAT(reasons(rank_candidates({"tcp", "pigeon", "shm"}, {{"tcp", "no network"}, {"pigeon", ""}}, "h", "h")),
              ElementsAre("tcp:not usable at the other end: no network", "pigeon:not in this build",
                          "shm:the other end does not offer it"));
}

TEST(TransportChoice, EncryptionExcludesAPlugInByTheFlagOfThisTask) {
  EXPECT_THAT(reasons(rank_candidates({"ucx", "tcp"}, {{"ucx", "no card"}, {"tcp", ""}}, "h", "other", true)),
              ElementsAre("ucx:excluded by this task's --encrypt-data: ucx carries data unencrypted", "tcp:"));
}

TEST(TransportWords, NameTheChosenAndWhyNotTheOthers) {
  EXPECT_EQ(explain({{"shm", ""}, {"tcp", ""}}, "shm"), "shm");
  EXPECT_EQ(explain({{"shm", "far"}, {"ucx", "absent"}, {"tcp", ""}}, "tcp"),
            "tcp (shm refused: far; ucx refused: absent)");
  // The reasons of less preferred transports do not matter.
  EXPECT_EQ(explain({{"shm", ""}, {"tcp", "cut"}}, "shm"), "shm");
}

TEST(TransportWords, WithoutATransportEachReasonAppearsOnceWithARemedy) {
  EXPECT_EQ(
      explain_none({{"ucx", "no card"}, {"shm", "far"}, {"ofi", "no card"}}),
      "ucx, ofi: no card; shm: far; `gradrail doctor` reports what is missing, and --transport auto falls back to tcp");
  EXPECT_EQ(explain_none({{"tcp", "cut"}}), "tcp: cut; `gradrail doctor` reports what is missing");
}

TEST(HostIdentity, IsStable) {
  EXPECT_EQ(host_id(), host_id());
  EXPECT_THAT(host_id(), Not(HasSubstr("unknown-boot")));
}

}  // namespace
}  // namespace gradrail::transport
