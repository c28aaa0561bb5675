#include "ps/protocol/mode.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/parse_number.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace gradrail {
namespace {

// In the order of their numbers.
constexpr std::array<std::string_view, 5> kPushFormatNames = {"fp32", "bf16", "int8", "int4", "topk"};
constexpr std::string_view kTopk = kPushFormatNames[PushFormat::topk];
constexpr std::array<std::string_view, 3> kReturnFormatNames = {"fp32", "bf16", "delta"};

/// Above every useful bound, and far from the overflow of step + bound.
constexpr uint32_t kMaxModeBound = 1'000'000;

/// A mode with a number.
struct BoundedMode {
  std::string_view name;
  ModeKind kind;
  uint32_t least;
  std::string_view meaning;
};
constexpr BoundedMode kBoundedModes[] = {
    {"ssp", ModeKind::ssp, 0, "of steps that a worker may be ahead of the slowest: ssp:4"},
    {"quorum", ModeKind::quorum, 1, "of gradients for which a step waits: quorum:2"},
};

/// Parses a percentage with one decimal at most. None: another text, or more than 999.9.
std::optional<uint16_t> parse_thousandths(std::string_view percent) {
  const size_t point = percent.find('.');
  const std::string_view fraction = point == std::string_view::npos ? "0" : percent.substr(point + 1);
  const std::optional<uint16_t> whole = parse_number<uint16_t>(percent.substr(0, point));
  const std::optional<uint16_t> tenths = parse_number<uint16_t>(fraction);
  if (!whole || !tenths || *whole > 999 || fraction.size() != 1) return std::nullopt;
  return static_cast<uint16_t>(*whole * 10 + *tenths);
}

/// An outer step takes minutes. An hour covers the slowest of its workers.
constexpr double kMaxGraceSeconds = 3600.0;
constexpr std::string_view kGraceOption = "grace=";
constexpr std::string_view kDropOption = "late=drop";

/// The text behind "grace=". `mode` is the whole one, for errors.
absl::StatusOr<Grace> parse_grace(std::string_view value, std::string_view mode) {
  if (value == "auto") return Grace{.is_auto = true};
  const std::optional<double> seconds = parse_number<double>(value);
  // false for NaN
  if (!seconds || !(*seconds >= 0.0 && *seconds <= kMaxGraceSeconds)) {
    return absl::InvalidArgumentError(
        fmt::format("mode '{}': grace needs a number of seconds from 0 to {}, or auto", mode, kMaxGraceSeconds));
  }
  return Grace{.seconds = *seconds + 0.0};  // -0 becomes 0
}

/// The options behind "quorum:K,". `text` is the whole mode, for errors.
absl::Status parse_quorum_options(std::string_view options, std::string_view text, Mode& mode) {
  bool has_grace = false;
  for (size_t end = 0; end != std::string_view::npos; options.remove_prefix(std::min(end, options.size() - 1) + 1)) {
    end = options.find(',');
    const std::string_view option = options.substr(0, end);
    if (option == kDropOption && !mode.drops_late) {
      mode.drops_late = true;
    } else if (option.substr(0, kGraceOption.size()) == kGraceOption && !has_grace) {
      has_grace = true;
      GRADRAIL_ASSIGN_OR_RETURN(mode.grace, parse_grace(option.substr(kGraceOption.size()), text));
    } else {
      return absl::InvalidArgumentError(fmt::format(
          "mode '{}': the options of quorum:K are grace=SECONDS or grace=auto, and late=drop, once each", text));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Mode> parse_mode(std::string_view text) {
  if (text == "async") return Mode{.kind = ModeKind::async};
  if (text == "sync") return Mode{.kind = ModeKind::sync};
  const std::string_view name = text.substr(0, text.find_first_of(":,"));
  const auto* const found = std::find_if(std::begin(kBoundedModes), std::end(kBoundedModes),
                                         [&](const BoundedMode& mode) { return mode.name == name; });
  const size_t comma = text.find(',');
  if (comma != std::string_view::npos && (found == std::end(kBoundedModes) || found->kind != ModeKind::quorum)) {
    return absl::InvalidArgumentError(
        fmt::format("mode '{}': only quorum:K has options, such as quorum:2,grace=0.5", text));
  }
  if (found == std::end(kBoundedModes)) {
    return absl::InvalidArgumentError(fmt::format("mode '{}': there are async, sync, ssp:K, quorum:K", text));
  }
  const size_t colon = text.find(':');
  const std::string_view number = colon < comma ? text.substr(colon + 1, comma - colon - 1) : "";
  const std::optional<uint32_t> bound = parse_number<uint32_t>(number);
  // An empty text is not a number: "ssp" alone fails here as well.
  if (!bound || *bound < found->least || *bound > kMaxModeBound) {
    return absl::InvalidArgumentError(fmt::format("mode '{}': {} needs a number from {} to {}, {}", text, name,
                                                  found->least, kMaxModeBound, found->meaning));
  }
  Mode mode{.kind = found->kind, .bound = *bound};
  if (comma == std::string_view::npos) return mode;
  GRADRAIL_RETURN_IF_ERROR(parse_quorum_options(text.substr(comma + 1), text, mode));
  return mode;
}

std::string mode_text(const Mode& mode) {
  switch (mode.kind) {
    case ModeKind::async:
      return "async";
    case ModeKind::sync:
      return "sync";
    case ModeKind::ssp:
      return fmt::format("ssp:{}", mode.bound);
    case ModeKind::quorum: {
      std::string text = fmt::format("quorum:{}", mode.bound);
      if (mode.grace.is_auto) text += fmt::format(",{}auto", kGraceOption);
      if (mode.grace.seconds > 0) text += fmt::format(",{}{}", kGraceOption, mode.grace.seconds);
      if (mode.drops_late) text += fmt::format(",{}", kDropOption);
      return text;
    }
  }
  GRADRAIL_CHECK(false);
}

absl::StatusOr<PushFormat> parse_push_format(std::string_view name) {
  const size_t colon = name.find(':');
  if (name.substr(0, colon) == kTopk) {
    const std::string_view percent = colon == std::string_view::npos ? "" : name.substr(colon + 1);
    const std::optional<uint16_t> thousandths = parse_thousandths(percent);
    if (thousandths && *thousandths > 0 && *thousandths <= kMaxThousandths)
      return PushFormat(PushFormat::topk, *thousandths);
    return absl::InvalidArgumentError(fmt::format(
        "push format '{}': topk needs a percentage from 0.1 to {} with one decimal at most, as topk:0.5 or topk:1",
        name, kMaxThousandths / 10));
  }
  const auto found = std::find(kPushFormatNames.begin(), kPushFormatNames.end(), name);
  if (found != kPushFormatNames.end()) return static_cast<PushFormat::Kind>(found - kPushFormatNames.begin());
  return absl::InvalidArgumentError(
      fmt::format("push format '{}': there are {}:P", name, fmt::join(kPushFormatNames, ", ")));
}

std::string push_format_name(PushFormat format) {
  const std::string_view name = kPushFormatNames[format.kind];
  if (format.kind != PushFormat::topk) return std::string(name);
  const int tenths = format.thousandths % 10;
  return fmt::format("{}:{}{}", name, format.thousandths / 10, tenths == 0 ? "" : fmt::format(".{}", tenths));
}

absl::StatusOr<ReturnFormat> parse_return_format(std::string_view name) {
  const auto found = std::find(kReturnFormatNames.begin(), kReturnFormatNames.end(), name);
  if (found != kReturnFormatNames.end()) return static_cast<ReturnFormat>(found - kReturnFormatNames.begin());
  return absl::InvalidArgumentError(
      fmt::format("return format '{}': there are {}", name, fmt::join(return_format_names(), ", ")));
}

std::vector<std::string> return_format_names() { return {kReturnFormatNames.begin(), kReturnFormatNames.end()}; }

std::string_view return_format_name(ReturnFormat format) { return kReturnFormatNames[static_cast<size_t>(format)]; }

namespace ps {

absl::Status check_bound(const Mode& mode) {
  if (mode.kind == ModeKind::quorum && mode.bound > mode.worker_count) {
    return absl::InvalidArgumentError(fmt::format("--mode {}: K must not be more than {}, the number of workers",
                                                  mode_text(mode), mode.worker_count));
  }
  return absl::OkStatus();
}

}  // namespace ps
}  // namespace gradrail
