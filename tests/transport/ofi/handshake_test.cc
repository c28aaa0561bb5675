#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "transport/ofi/handshake.h"

namespace gradrail::transport::ofi {
namespace {

EndpointHello hello() {
  return {.provider = "verbs",
          .immediate_bits = 32,
          .message_bytes = 4096,
          .receives = 32,
          .token = 0x1122334455667788,
          .mailbox_key = 7,
          .mailbox_base = 0x7fff'0000'0000,
          .address = std::string("\x02\x00\x12\x34", 4)};
}

absl::Span<const std::byte> span(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

absl::StatusOr<ControlMessage> heard(const std::string& text) { return decode(span(text)); }

TEST(OfiHandshake, what_is_said_is_heard) {
  const auto message = heard(encode(hello()));
  ASSERT_TRUE(message.ok()) << message.status();
  const auto& got = std::get<EndpointHello>(*message);
  EXPECT_EQ(got.provider, "verbs");
  EXPECT_EQ(got.immediate_bits, 32);
  EXPECT_EQ(got.message_bytes, 4096u);
  EXPECT_EQ(got.receives, 32u);
  EXPECT_EQ(got.token, 0x1122334455667788u);
  EXPECT_EQ(got.mailbox_key, 7u);
  EXPECT_EQ(got.mailbox_base, 0x7fff'0000'0000u);
  EXPECT_EQ(got.address, hello().address);

  const RegionKey key = {3, 4, 5, 6, Access::remote_write};
  const auto request = heard(encode(Request{9, key}));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(std::get<Request>(*request).number, 9u);
  EXPECT_EQ(std::get<Request>(*request).key, key);

  const auto grant = heard(encode(Grant{9, 10, 11}));
  ASSERT_TRUE(grant.ok()) << grant.status();
  EXPECT_EQ(std::get<Grant>(*grant).base, 11u);

  const auto probe = heard(encode(Probe{12}));
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_EQ(std::get<Probe>(*probe).number, 12u);
  const auto reply = heard(encode(Reply{13}));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(std::get<Reply>(*reply).number, 13u);
}

TEST(OfiHandshake, another_version_is_named_whatever_follows) {
  EndpointHello other = hello();
  other.version = 77;
  const std::string begin = encode(other).substr(0, 1 + 8 + 4);
  EXPECT_EQ(heard(begin + "a layout of the future").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(OfiHandshake, what_is_cut_short_or_too_long_is_refused) {
  for (const std::string& whole : {encode(hello()), encode(Request{1, {}}), encode(Grant{1, 2, 3}),
                                   encode(Disconnect{"bye"}), encode(Probe{1}), encode(Reply{1})}) {
    for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
      EXPECT_EQ(heard(whole.substr(0, bytes)).status().code(), absl::StatusCode::kDataLoss) << bytes;
    }
    EXPECT_EQ(heard(whole + 'x').status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(OfiHandshake, nonsense_is_refused) {
  EndpointHello none = hello();
  none.receives = 0;
  EXPECT_FALSE(heard(encode(none)).ok()) << "a peer that can never be sent a message";
  none = hello();
  none.address.clear();
  EXPECT_FALSE(heard(encode(none)).ok());
  none.address.assign(kMaxAddressBytes + 1, 'a');
  EXPECT_FALSE(heard(encode(none)).ok());
  std::string magic = encode(hello());
  magic[1] ^= 1;
  EXPECT_FALSE(heard(magic).ok());
  std::string key = encode(Request{1, {1, 2, 3, 4, Access::remote_read}});
  key.back() ^= 1;
  EXPECT_FALSE(heard(key).ok()) << "damaged key";
}

TEST(OfiHandshake, a_reason_is_cut_and_made_printable) {
  const auto message = heard(encode(Disconnect{"\x1b[31m" + std::string(2000, 'r')}));
  ASSERT_TRUE(message.ok()) << message.status();
  const std::string& reason = std::get<Disconnect>(*message).reason;
  EXPECT_EQ(reason.size(), kMaxReasonBytes);
  EXPECT_EQ(reason.substr(0, 5), "?[31m");
}

TEST(OfiHandshake, ends_that_differ_get_the_difference) {
  EXPECT_TRUE(compare(hello(), hello()).ok());
  EndpointHello other = hello();
  other.provider = "tcp;ofi_rxm";
  const absl::Status providers = compare(hello(), other);
  EXPECT_EQ(providers.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(providers.message().find("'verbs'"), absl::string_view::npos);
  EXPECT_NE(providers.message().find("'tcp;ofi_rxm'"), absl::string_view::npos);
  EXPECT_NE(providers.message().find("--ofi-provider"), absl::string_view::npos);
  other = hello();
  other.message_bytes = 8192;
  EXPECT_FALSE(compare(hello(), other).ok());
  other = hello();
  other.immediate_bits = 64;
  EXPECT_FALSE(compare(hello(), other).ok());
}

}  // namespace
}  // namespace gradrail::transport::ofi
