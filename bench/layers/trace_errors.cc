#include "bench/layers/trace_errors.h"

#include <string>

#include "bench/driver/harness.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {

std::string shown(const nlohmann::json& value) {
  constexpr size_t kMostShown = 60;
  const std::string text = value.dump(-1, ' ', true);
  return text.size() <= kMostShown ? text : text.substr(0, kMostShown) + "…";
}

absl::Status bad_field(std::string_view where, std::string_view field, std::string_view found,
                       std::string_view expected) {
  return absl::DataLossError(fmt::format("{}: {} is {}, and must be {}; correct it, or record the trace again", where,
                                         field, found, expected));
}

std::string nth_node(size_t number, const nlohmann::json& node) {
  return fmt::format("node {} of the file (name {})", number, shown(node.value("name", nlohmann::json())));
}

absl::Status take_objects(std::string_view text,
                          const std::function<bool(const nlohmann::json& object, absl::Status& status)>& take_if) {
  absl::Status mistake;  // the first one
  const auto take = [&](int, nlohmann::json::parse_event_t what, nlohmann::json& value) {
    if (what != nlohmann::json::parse_event_t::object_end) return true;
    absl::Status status;
    const bool is_taken = take_if(value, status);
    mistake.Update(status);
    return !is_taken;
  };
  try {  // with an exception: it has line and column
    [[maybe_unused]] const nlohmann::json rest = nlohmann::json::parse(text, take);
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(json_error_text(error));
  }
  return mistake;
}

absl::Status unknown_kind(std::string_view what) {
  return absl::DataLossError(fmt::format(
      "{}: neither a layer list nor a trace. A layer list has lines `name bytes microseconds`. A trace of Kineto is "
      "{{\"traceEvents\": […]}} or a list of events with \"ph\"; of PyTorch, {{\"schema\": …, \"nodes\": […]}} with "
      "the "
      "schema first; of Chakra, JSON objects with \"type\", one after the other (chakra_jsonizer)",
      what));
}

}  // namespace gradrail::bench
