// Texts of flags that have a syntax of their own.
#include "base/check.h"
#include "base/flags/text_value.h"
#include "base/parse_number.h"
#include "base/status.h"
#include "ps/protocol/mode.h"
#include "ps/protocol/optimizer_settings.h"
#include "tests/fuzz/fuzz.h"
#include "tools/doctor/text.h"

namespace gradrail {
namespace {

void try_value(const std::string& text) {
  const std::string shown = shown_value(text);
  GRADRAIL_CHECK(shown.size() <= 4 * kMaxQuotedBytes + 64);
  GRADRAIL_CHECK(std::none_of(shown.begin(), shown.end(), is_control));
  if (mistake_in_value(text).empty()) GRADRAIL_CHECK(!text.empty() && text.size() <= kMaxValueBytes);
}

void try_mode(std::string_view text) {
  const absl::StatusOr<Mode> mode = parse_mode(text);
  if (!mode.ok()) return fuzz::check_refusal(mode.status(), absl::StatusCode::kInvalidArgument, "mode");
  const absl::StatusOr<Mode> again = parse_mode(mode_text(*mode));
  GRADRAIL_CHECK(again.ok() && again->kind == mode->kind && again->bound == mode->bound && again->grace == mode->grace);
  GRADRAIL_CHECK(mode->bound <= 1'000'000);
}

void try_optimizer(std::string_view text) {
  const absl::StatusOr<OptimizerKind> optimizer = parse_optimizer(text);
  if (!optimizer.ok()) return fuzz::check_refusal(optimizer.status(), absl::StatusCode::kInvalidArgument, "optimizer");
  GRADRAIL_CHECK(optimizer_name(*optimizer) == text);
}

void try_numbers(std::string_view text) {
  if (const auto number = parse_number<int64_t>(text)) GRADRAIL_CHECK(parse_number<int64_t>(std::to_string(*number)));
  if (const auto small = parse_number<uint16_t>(text)) GRADRAIL_CHECK(*small == *parse_number<uint64_t>(text));
  parse_number<double>(text);
}

/// Lines of devices, kernels and libraries that `gradrail doctor` reads.
void try_doctor(std::string_view text) {
  using namespace tools::doctor;
  GRADRAIL_CHECK(fuzz::is_printable(printable(text)) && printable(text).size() <= 163);
  GRADRAIL_CHECK(clean(text).size() == text.size());
  for (const std::string& word : words_of(text)) GRADRAIL_CHECK(!word.empty() && trimmed(word) == word);
  number_of(text);
  number_of(text, 16);
}

}  // namespace
}  // namespace gradrail

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail;
  const std::string text(fuzz::text_of(data, bytes));
  try_value(text);
  try_mode(text);
  try_optimizer(text);
  try_numbers(text);
  try_doctor(text);
  return 0;
}
