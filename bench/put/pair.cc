#include "bench/put/pair.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "base/status.h"
#include "bench/driver/harness.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

constexpr uint64_t kWindowBytes = 8 << 20;

absl::StatusOr<PutFigure> lead_loop(const std::string& what, PutEnd& end, const PutLoad& load) {
  if (what == "latency") return lead_latency(end, load);
  return what == "both_ways" ? lead_both_ways(end, load) : lead_bandwidth(end, load);
}

absl::StatusOr<uint64_t> answer_loop(const std::string& what, PutEnd& end, const PutLoad& load) {
  if (what == "latency") return answer_latency(end, load);
  return what == "both_ways" ? answer_both_ways(end, load) : answer_bandwidth(end, load);
}

}  // namespace

uint32_t PutPair::window_of(uint32_t wanted, uint64_t bytes) {
  // The number is at least two, so that each window has a put without a notice.
  return static_cast<uint32_t>(std::clamp<uint64_t>(kWindowBytes / bytes, 2, std::max(2u, wanted)));
}

absl::StatusOr<PutFigure> PutPair::lead(const std::string& what, const PutLoad& load) {
  GRADRAIL_RETURN_IF_ERROR(link_.say(fmt::format("{} {} {}", what, load.bytes, load.window)));
  // The wait lasts until the other end is in its loop: it discards all arrivals before.
  if (const auto ready = link_.hear(meanwhile()); !ready.ok()) return ready.status();
  GRADRAIL_ASSIGN_OR_RETURN(PutFigure figure, lead_loop(what, end_, load));
  GRADRAIL_ASSIGN_OR_RETURN(const std::string wrong, link_.hear(meanwhile()));
  figure.wrong += parse_size(wrong);
  return figure;
}

absl::Status PutPair::end() {
  GRADRAIL_RETURN_IF_ERROR(link_.say("end"));
  link_.hear(meanwhile()).status().IgnoreError();  // ensures that neither closes while the other still reads
  return absl::OkStatus();
}

absl::Status PutPair::answer() {
  while (true) {
    GRADRAIL_ASSIGN_OR_RETURN(const std::string asked, link_.hear(meanwhile()));
    if (asked == "end") return link_.say("end");
    std::istringstream words(asked);
    std::string what;
    PutLoad load;
    words >> what >> load.bytes >> load.window;
    GRADRAIL_RETURN_IF_ERROR(link_.say("ready"));
    GRADRAIL_ASSIGN_OR_RETURN(const uint64_t wrong, answer_loop(what, end_, load));
    GRADRAIL_RETURN_IF_ERROR(link_.say(std::to_string(wrong)));
  }
}

/// Work that a transport still has between measurements; no notices are due then.
std::function<void()> PutPair::meanwhile() {
  return [this] {
    std::array<uint32_t, PutEnd::kBatch> none{};
    end_.poll(absl::MakeSpan(none)).status().IgnoreError();
  };
}

}  // namespace gradrail::bench
