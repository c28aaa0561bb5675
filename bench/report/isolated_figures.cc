#include "bench/report/isolated_figures.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "base/resource_limits.h"
#include "base/status.h"
#include "bench/driver/subprocess.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {

constexpr Duration kLook = std::chrono::seconds(1);  // interval of looks for a changed deadline

namespace {

/// Measures in isolation; reads `deadline` again when it has passed.
std::vector<Figure> isolated(const std::string& path, uint64_t bytes, const std::function<TimePoint()>& deadline,
                             const std::function<absl::StatusOr<std::vector<Figure>>()>& body) {
  const auto failed = [&](const absl::Status& why) {
    return std::vector<Figure>{not_measured(path, bytes, std::string(message_of(why)))};
  };
  // A child measures: a crash or a hang of a library costs one figure, not the run.
  Subprocess child([&]() -> nlohmann::json {
    const absl::StatusOr<std::vector<Figure>> measured = body();
    nlohmann::json list = nlohmann::json::array();
    for (const Figure& figure : measured.ok() ? *measured : failed(measured.status())) list.push_back(to_json(figure));
    return list;
  });
  while (!child.is_done(std::clamp<Duration>(deadline() - Clock::now(), Duration::zero(), kLook)) &&
         Clock::now() < deadline()) {
  }
  const absl::StatusOr<nlohmann::json> answer = child.result(deadline());
  // A child that was killed or hung still has its row, with the signal or the timeout as the reason.
  if (!answer.ok()) return failed(answer.status());
  std::vector<Figure> figures;
  for (const nlohmann::json& figure : *answer) figures.push_back(figure_from(figure));
  return figures;
}

}  // namespace

std::vector<Figure> isolated_figures(const std::string& path, uint64_t bytes, Duration timeout,
                                     const std::function<absl::StatusOr<std::vector<Figure>>()>& body) {
  return isolated(
      path, bytes, [end = Clock::now() + timeout] { return end; }, body);
}

std::vector<Figure> isolated_figures(const std::string& path, uint64_t bytes, const Patience::Limits& limits,
                                     const BodyWithPatience& body) {
  void* const page = mmap(nullptr, sizeof(Patience), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED)
    return {not_measured(path, bytes, std::string(message_of(kernel_refusal("shared memory", errno))))};
  auto* const patience = new (page) Patience(limits);
  std::vector<Figure> figures = isolated(
      path, bytes, [patience] { return patience->deadline(); }, [&] { return body(*patience); });
  munmap(page, sizeof(Patience));
  return figures;
}

// A minute for opening devices and for large sizes, then ten times the timed part for a busy machine.
Duration timeout_for(double seconds) { return std::chrono::seconds(60 + static_cast<int64_t>(10 * seconds)); }

}  // namespace gradrail::bench
