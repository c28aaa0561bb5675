#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/parse_number.h"
#include "base/random.h"
#include "decoders.h"
#include "gtest/gtest.h"

namespace gradrail::fuzz {
namespace {

constexpr uint64_t kSeed = 20'261'123;
constexpr int kRounds = 2000;  // all decoders together take some seconds
constexpr size_t kMaxBytes = 4096;

/// Values at which sizes and counts go wrong.
constexpr uint64_t kOddNumbers[] = {0,          1,          0x7f,       0x80,           0xff,
                                    0x7fff,     0xffff,     0x7fffffff, 0x80000000,     0xffffffff,
                                    0x3fffffff, 1u << 20,   INT64_MAX,  UINT64_MAX / 4, UINT64_MAX - 1,
                                    UINT64_MAX, 0x40000000, 0x20000001, 1ull << 62,     1ull << 38};

using Corpus = std::vector<std::string>;

Corpus read_corpus(const std::string& decoder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(GRADRAIL_CORPUS_DIR "/") + decoder, error))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  Corpus corpus;
  for (const std::filesystem::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

/// One random change; it may turn out to change nothing.
void mutate(std::string& bytes, const Corpus& corpus, Random& random) {
  const size_t at = random.below(bytes.size() + 1);
  const size_t run = 1 + random.below(16);
  const std::string& other = corpus[random.below(corpus.size())];
  switch (random.below(8)) {
    case 0:
      if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
      break;
    case 1:
      if (at < bytes.size()) bytes[at] = static_cast<char>(random.next());
      break;
    case 2:
      bytes.erase(at, run);
      break;
    case 3:
      bytes.insert(at, run, static_cast<char>(random.next()));
      break;
    case 4:
      bytes.insert(at, other, random.below(other.size() + 1), run);
      break;
    case 5:
      bytes = bytes.substr(0, at) + other.substr(random.below(other.size() + 1));
      break;
    case 6: {
      const uint64_t value = kOddNumbers[random.below(std::size(kOddNumbers))];
      const size_t width = size_t{1} << random.below(4);
      if (at + width <= bytes.size()) std::memcpy(bytes.data() + at, &value, width);
      break;
    }
    default:
      bytes.insert(at, std::to_string(kOddNumbers[random.below(std::size(kOddNumbers))]));
  }
  bytes.resize(std::min(bytes.size(), kMaxBytes));
}

/// A copy without spare bytes: the sanitizer finds a read behind the end.
void run(const Decoder& decoder, const std::string& input) {
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  decoder.run(bytes.data(), bytes.size());
}

class Replay : public testing::TestWithParam<Decoder> {};

// A decoder that is wrong stops the process: the checks of tests/fuzz do so, and the sanitizers.

TEST_P(Replay, Corpus) {
  const Corpus corpus = read_corpus(GetParam().name);
  ASSERT_FALSE(corpus.empty()) << "no inputs in " GRADRAIL_CORPUS_DIR "/" << GetParam().name;
  for (const std::string& input : corpus) run(GetParam(), input);
}

TEST_P(Replay, Mutations) {
  const Corpus corpus = read_corpus(GetParam().name);
  ASSERT_FALSE(corpus.empty());
  const char* const given = std::getenv("GRADRAIL_TEST_SEED");
  const uint64_t seed = parse_number<uint64_t>(given == nullptr ? "" : given).value_or(kSeed);
  std::printf("GRADRAIL_TEST_SEED=%llu repeats this test\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  Random random(seed);
  for (int round = 0; round < kRounds; ++round) {
    std::string input = corpus[random.below(corpus.size())];
    for (uint64_t i = random.below(4) + 1; i > 0; --i) mutate(input, corpus, random);
    run(GetParam(), input);
  }
}

INSTANTIATE_TEST_SUITE_P(Decoders, Replay, testing::ValuesIn(kDecoders),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace gradrail::fuzz
