#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "CLI/CLI.hpp"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail {

/// A list of 4,096 IPv4 addresses has fewer bytes. A file takes longer lists (--cluster).
constexpr size_t kMaxValueBytes = 100'000;
constexpr size_t kMaxQuotedBytes = 100;  ///< a line of the message stays readable

/// The value of a flag for a message of one line: escaped, and a long text cut before a character of UTF-8.
inline std::string shown_value(std::string_view text) {
  if (text.size() <= kMaxQuotedBytes) return fmt::format("'{}'", escaped(text));
  size_t end = kMaxQuotedBytes;
  const auto continues = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80; };
  while (end > 0 && continues(end)) --end;
  return fmt::format("'{}…' ({} bytes)", escaped(text.substr(0, end)), text.size());
}

/// The reason why no flag of this program takes this text as its value; "" for all other texts. A shell makes an empty
/// text of an unset variable, and a program that ignores it runs with its defaults.
inline std::string mistake_in_value(const std::string& text) {
  if (text.find_first_not_of(' ') == std::string::npos)
    return fmt::format("{} is an empty value; give a value, or omit the flag", shown_value(text));
  if (text.size() > kMaxValueBytes)
    return fmt::format("{} is too long; the limit is {} bytes", shown_value(text), kMaxValueBytes);
  if (std::any_of(text.begin(), text.end(), is_control))
    return fmt::format("{} contains a control character; remove it", shown_value(text));
  return "";
}

/// The reason why a switch such as --checksums=TEXT does not take this text; "" for the permitted ones.
inline std::string mistake_in_switch(const std::string& text) {
  constexpr std::array<std::string_view, 8> kPermitted = {"true", "false", "yes", "no", "on", "off", "1", "0"};
  if (std::find(kPermitted.begin(), kPermitted.end(), CLI::detail::to_lower(text)) != kPermitted.end()) return "";
  return fmt::format("{} is not true, false, yes, no, on, off, 1 or 0", shown_value(text));
}

/// Applies mistake_in_value() to each option with a value, and mistake_in_switch() to the others, in this command and
/// all below it. Call it last: these checks precede those of the options, so that the other messages can contain the
/// value.
inline void refuse_unusable_values(CLI::App& app) {
  for (CLI::Option* const option : app.get_options()) {
    option->transform(CLI::Validator(option->get_items_expected_max() > 0 ? mistake_in_value : mistake_in_switch, ""));
  }
  for (CLI::App* const sub : app.get_subcommands([](CLI::App*) { return true; })) refuse_unusable_values(*sub);
}

/// Stores what `parse`, a function of a text that returns a StatusOr, makes of the value. Its message contains the value.
/// Use  option->transform(parsed_into(options.mode, parse_mode)).
template <typename Value, typename Parse>
CLI::Validator parsed_into(Value& value, Parse parse) {
  return CLI::Validator(
      [&value, parse = std::move(parse)](std::string& text) -> std::string {
        auto parsed = parse(text);
        if (!parsed.ok()) return std::string(message_of(parsed.status()));
        value = *std::move(parsed);
        return "";
      },
      "");
}

/// Permits the values that `parse`, a function of a text that returns a Status or a StatusOr, accepts. Its message
/// contains the value.
/// Use  option->transform(accepted_by(parse_mode)).
template <typename Parse>
CLI::Validator accepted_by(Parse parse) {
  const auto status_of = [](const auto& result) -> absl::Status {
    if constexpr (std::is_same_v<std::decay_t<decltype(result)>, absl::Status>) {
      return result;
    } else {
      return result.status();
    }
  };
  return CLI::Validator([parse = std::move(parse),
                         status_of](std::string& text) { return std::string(message_of(status_of(parse(text)))); },
                        "");
}

}  // namespace gradrail
