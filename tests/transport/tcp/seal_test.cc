// The parts of the encryption: known answers, and records that were altered.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "fmt/format.h"
#include "transport/tcp/seal/aead.h"
#include "transport/tcp/seal/keys.h"
#include "transport/tcp/seal/record_cipher.h"

namespace gradrail::transport::tcp::seal {
namespace {

std::string from_hex(std::string_view digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  std::string digits;
  for (const char c : bytes) digits += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return digits;
}

std::string_view text(const std::byte* data, size_t bytes) { return {reinterpret_cast<const char*>(data), bytes}; }

Key key_of(std::string_view bytes) {
  Key key;
  std::memcpy(key.data(), bytes.data(), std::min(bytes.size(), kKeyBytes));
  return key;
}

PublicKey public_key(std::string_view digits) {
  PublicKey key;
  std::memcpy(key.data(), from_hex(digits).data(), key.size());
  return key;
}

absl::Span<const std::byte> bytes_of(std::string_view given) {
  return {reinterpret_cast<const std::byte*>(given.data()), given.size()};
}

TEST(Hkdf, gives_the_answers_of_rfc_5869) {
  const std::string input(22, '\x0b');
  const Key first = hkdf_extract(from_hex("000102030405060708090a0b0c"), input);
  EXPECT_EQ(to_hex(first.text()), "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5");
  EXPECT_EQ(to_hex(hkdf_expand(first.text(), from_hex("f0f1f2f3f4f5f6f7f8f9"), 42)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
  const Key without_salt = hkdf_extract("", input);
  EXPECT_EQ(to_hex(without_salt.text()), "19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04");
  EXPECT_EQ(to_hex(hkdf_expand(without_salt.text(), "", 42)),
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8");
}

TEST(X25519, gives_the_answers_of_rfc_7748) {
  const KeyPair bob =
      KeyPair::from_private(from_hex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"));
  EXPECT_EQ(to_hex(text(bob.public_key().data(), kKeyBytes)),
            "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
  const auto shared = bob.agree(public_key("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"));
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(to_hex(shared->text()), "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
}

TEST(X25519, refuses_a_key_of_small_order) {
  EXPECT_FALSE(KeyPair::generate().agree(PublicKey{}).ok());
  EXPECT_FALSE(
      KeyPair::generate().agree(public_key("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800")).ok());
}

struct AeadAnswer {
  Cipher cipher;
  const char *key, *nonce, *header, *plain, *encrypted, *tag;
};

class KnownAead : public ::testing::TestWithParam<AeadAnswer> {};

TEST_P(KnownAead, gives_the_known_answer) {
  const AeadAnswer& known = GetParam();
  const std::unique_ptr<Aead> aead = make_aead(known.cipher, key_of(from_hex(known.key)));
  Nonce nonce;
  std::memcpy(nonce.data(), from_hex(known.nonce).data(), nonce.size());
  const std::string header = from_hex(known.header);
  std::string plain = from_hex(known.plain);
  const std::unique_ptr<Aead> openssl = make_openssl_aead(known.cipher, key_of(from_hex(known.key)));
  // Any cut into pieces gives the same text, in each implementation.
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{16}, size_t{17}, plain.size() - 1}) {
    std::vector<std::byte> out(plain.size() + kTagBytes);
    const iovec pieces[] = {{plain.data(), cut}, {plain.data() + cut, plain.size() - cut}};
    aead->encrypt(nonce, bytes_of(header), pieces, out.data());
    EXPECT_EQ(to_hex(text(out.data(), plain.size())).substr(0, std::strlen(known.encrypted)), known.encrypted);
    EXPECT_EQ(to_hex(text(out.data() + plain.size(), kTagBytes)), known.tag);
    EXPECT_TRUE(openssl->decrypt(nonce, bytes_of(header), out.data(), plain.size()));
    openssl->encrypt(nonce, bytes_of(header), pieces, out.data());
    EXPECT_TRUE(aead->decrypt(nonce, bytes_of(header), out.data(), plain.size()));
    EXPECT_EQ(text(out.data(), plain.size()), plain);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Known, KnownAead,
    ::testing::Values(
        // McGrew and Viega, "The Galois/Counter Mode of Operation", test case 16.
        AeadAnswer{Cipher::aes_256_gcm, "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
                   "cafebabefacedbaddecaf888", "feedfacedeadbeeffeedfacedeadbeefabaddad2",
                   "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
                   "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
                   "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
                   "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
                   "76fc6ece0f4e1768cddf8853bb2d551b"},
        // RFC 8439, section 2.8.2.
        AeadAnswer{Cipher::chacha20_poly1305, "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
                   "070000004041424344454647", "50515253c0c1c2c3c4c5c6c7",
                   "4c616469657320616e642047656e746c656d656e206f662074686520636c6173"
                   "73206f66202739393a204966204920636f756c64206f6666657220796f75206f"
                   "6e6c79206f6e652074697020666f7220746865206675747572652c2073756e73"
                   "637265656e20776f756c642062652069742e",
                   "d31a8d34648e60db7b86afbc53ef7ec2", "1ae10b594f09e26a7e902ecbd0600691"}),
    [](const auto& known) {
      return std::string(known.param.cipher == Cipher::aes_256_gcm ? "aes_256_gcm" : "chacha20_poly1305");
    });

TEST(Address, holds_the_public_key) {
  const KeyPair pair = KeyPair::generate();
  const auto parsed = parse_sealed_address(address_with_key("10.0.0.1:2223", pair.public_key()));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->address, "10.0.0.1:2223");
  EXPECT_TRUE(parsed->has_key);
  EXPECT_EQ(parsed->key, pair.public_key());
  EXPECT_FALSE(parse_sealed_address("10.0.0.1:2223")->has_key);
  for (const std::string& wrong :
       {std::string("10.0.0.1:2223#"), std::string("10.0.0.1:2223#12"), "[::1]:2223#" + std::string(64, 'g')})
    EXPECT_FALSE(parse_sealed_address(wrong).ok()) << wrong;
}

// Records.

constexpr size_t kPlainBytes = 100;

std::vector<std::byte> record(RecordCipher& sender, std::string plain) {
  std::vector<std::byte> out(plain.size() + kRecordOverheadBytes);
  const iovec piece = {plain.data(), plain.size()};
  sender.seal({&piece, 1}, plain.size(), out.data());
  return out;
}

/// Whether a receiver takes these bytes as a complete record.
bool accepts(RecordCipher& receiver, std::vector<std::byte> bytes, std::string* plain = nullptr) {
  if (bytes.size() < kRecordHeaderBytes) return false;
  const absl::StatusOr<size_t> length = receiver.length_of(bytes.data());
  if (!length.ok() || bytes.size() < *length + kRecordOverheadBytes) return false;
  if (!receiver.open(bytes.data(), *length).ok()) return false;
  if (plain != nullptr) *plain = text(bytes.data() + kRecordHeaderBytes, *length);
  return true;
}

class Records : public ::testing::TestWithParam<Cipher> {
 protected:
  const Key key_ = key_of(std::string(kKeyBytes, 'k'));
  const Key other_direction_ = key_of(std::string(kKeyBytes, 'd'));
};

TEST_P(Records, of_each_size_arrive) {
  RecordCipher sender(GetParam(), key_);
  RecordCipher receiver(GetParam(), key_);
  for (const size_t bytes : {size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{4096}, kMaxRecordBytes}) {
    std::string plain(bytes, 'p');
    std::string arrived;
    ASSERT_TRUE(accepts(receiver, record(sender, plain), &arrived)) << bytes;
    EXPECT_EQ(arrived, plain);
  }
}

TEST_P(Records, with_equal_content_differ) {
  RecordCipher sender(GetParam(), key_, 2);
  std::vector<std::vector<std::byte>> all;
  for (int i = 0; i < 6; ++i) all.push_back(record(sender, "the same"));
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      EXPECT_FALSE(std::equal(all[i].begin() + kRecordHeaderBytes, all[i].end(), all[k].begin() + kRecordHeaderBytes));
    }
  }
}

/// 10^5 attempts against one receiver: bits, forgeries, replays, order, lengths, directions. None is accepted, and the
/// next valid record still is.
TEST_P(Records, that_were_altered_are_refused) {
  RecordCipher sender(GetParam(), key_, 4);
  RecordCipher receiver(GetParam(), key_, 4);
  RecordCipher backward(GetParam(), other_direction_, 4);
  Random random(20261123);
  std::vector<std::vector<std::byte>> former;
  size_t attempts = 0;
  const auto refused = [&](const std::vector<std::byte>& bytes, const char* what) {
    ++attempts;
    ASSERT_FALSE(accepts(receiver, bytes)) << what << ", attempt " << attempts;
  };
  while (attempts < 100'000) {
    const std::vector<std::byte> good = record(sender, std::string(kPlainBytes, 'p'));
    const std::vector<std::byte> later = record(sender, std::string(kPlainBytes, 'q'));
    for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
      std::vector<std::byte> bad = good;
      bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      ASSERT_NO_FATAL_FAILURE(refused(bad, "one bit"));
    }
    for (int i = 0; i < 200; ++i) {
      std::vector<std::byte> bad = good;
      for (uint64_t changes = 1 + random.below(8); changes > 0; --changes)
        bad[random.below(bad.size())] ^= static_cast<std::byte>(1 + random.below(255));
      ASSERT_NO_FATAL_FAILURE(refused(bad == good ? later : bad, "several bytes"));
      for (std::byte& byte : bad) byte = static_cast<std::byte>(random.below(256));
      ASSERT_NO_FATAL_FAILURE(refused(bad, "forged"));
      // A right header with a forged content.
      std::copy_n(good.begin(), kRecordHeaderBytes, bad.begin());
      ASSERT_NO_FATAL_FAILURE(refused(bad, "forged content"));
    }
    for (const auto& old : former) ASSERT_NO_FATAL_FAILURE(refused(old, "replayed"));
    ASSERT_NO_FATAL_FAILURE(refused(later, "too early"));
    for (size_t bytes = 0; bytes < good.size(); ++bytes)
      ASSERT_NO_FATAL_FAILURE(refused({good.begin(), good.begin() + static_cast<ptrdiff_t>(bytes)}, "truncated"));
    std::vector<std::byte> joined = good;  // the content of a later record behind this header
    std::copy(later.begin() + kRecordHeaderBytes, later.end(), joined.begin() + kRecordHeaderBytes);
    ASSERT_NO_FATAL_FAILURE(refused(joined, "joined"));
    ASSERT_NO_FATAL_FAILURE(refused(record(backward, std::string(kPlainBytes, 'p')), "other direction"));
    ASSERT_TRUE(accepts(receiver, good));
    ASSERT_NO_FATAL_FAILURE(refused(good, "repeated"));
    ASSERT_TRUE(accepts(receiver, later));
    former.push_back(good);
    former.push_back(later);
  }
}

INSTANTIATE_TEST_SUITE_P(Ciphers, Records, ::testing::Values(Cipher::aes_256_gcm, Cipher::chacha20_poly1305),
                         [](const auto& known) {
                           return std::string(known.param == Cipher::aes_256_gcm ? "aes_256_gcm" : "chacha20_poly1305");
                         });

}  // namespace
}  // namespace gradrail::transport::tcp::seal
