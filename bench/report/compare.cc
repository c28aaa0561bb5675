#include "bench/report/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/status.h"
#include "bench/driver/options.h"
#include "bench/report/figure.h"
#include "bench/report/run_file.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

// The probability that any row of two equal runs is reported as different.
constexpr double kFamilyLevel = 0.05;
// An interval up to a factor of 1000 is no information: it comes from two or three rounds.
constexpr double kNoInterval = 1e3;

/// Regularized incomplete beta function I_x(a, b), by its continued fraction.
/// Source  Press et al., Numerical Recipes, 6.4; Lentz, Applied Optics 15 (1976).
double incomplete_beta(double a, double b, double x) {
  if (x <= 0.0 || x >= 1.0) return x <= 0.0 ? 0.0 : 1.0;
  // The fraction converges fast below this bound only; the symmetry of the function covers the rest.
  if (x > (a + 1) / (a + b + 2)) return 1.0 - incomplete_beta(b, a, 1.0 - x);
  // Lentz divides by partial results, which may be 0. A tiny number in place of 0 cancels in the next step.
  constexpr double kTiny = 1e-300;
  const auto away_from_zero = [](double value) { return std::fabs(value) < kTiny ? kTiny : value; };
  double c = 1.0, d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1)), fraction = d;
  // Some ten steps suffice for the numbers of rounds that the flags permit; the bound guards against NaN.
  for (int m = 1; m < 500; ++m) {
    // The fraction has two kinds of coefficients, which take turns.
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    double change = 1.0;
    for (const double step : {even, odd}) {
      d = 1.0 / away_from_zero(1.0 + step * d);
      c = away_from_zero(1.0 + step / c);
      change = c * d;
      fraction *= change;
    }
    if (std::fabs(change - 1.0) < 1e-12) break;
  }
  // By logarithms: the gamma function overflows above 171. log1p() keeps the digits of a small x.
  return std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x)) *
         fraction / a;
}

/// The t beyond which so much of Student's distribution lies, on both sides together.
double student_quantile(double freedom, double both_tails) {
  // Bisection: the tails shrink with t. With one degree of freedom and a hundred rows t exceeds 1000.
  double low = 0.0, high = 1e12;
  for (int i = 0; i < 200; ++i) {
    const double middle = 0.5 * (low + high);
    const double tails = incomplete_beta(freedom / 2, 0.5, freedom / (freedom + middle * middle));
    (tails > both_tails ? low : high) = middle;
  }
  return high;
}

struct Moments {
  double mean = 0.0;
  double squared_error = 0.0;  ///< of the mean
};

Moments moments_of_logs(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  double sum = 0.0, squares = 0.0;
  for (const double value : values) sum += std::log(value);
  // A second pass: the difference of two large sums would lose the digits of a small variance.
  for (const double value : values) squares += std::pow(std::log(value) - sum / n, 2);
  return {sum / n, squares / (n - 1) / n};
}

/// Ratios have a geometric mean, which belongs to the ratio of the columns.
double middle_of(const std::vector<double>& rounds) {
  double sum = 0.0;
  for (const double value : rounds) sum += std::log(value);
  return std::exp(sum / static_cast<double>(rounds.size()));
}

/// "machine: A / B", one for each thing that two comparable runs share.
std::vector<std::string> differences(const nlohmann::json& first, const nlohmann::json& second) {
  std::vector<std::string> list;
  const auto hold = [&](const std::string& name, const nlohmann::json& a, const nlohmann::json& b) {
    if (a != b) list.push_back(fmt::format("{}: {} / {}", name, a.dump(), b.dump()));
  };
  hold("machine", first["machine"], second["machine"]);
  if (first.contains("libraries") && second.contains("libraries"))
    hold("libraries", first["libraries"], second["libraries"]);
  // An option that an earlier version lacked has its default value.
  nlohmann::json one = config_of(Options{}), other = one;
  // The defaults first: each run replaces those that it recorded.
  one.update(first["config"]);
  other.update(second["config"]);
  for (const auto& [name, value] : one.items())
    // The seed decides on the order of the rounds only, and a comparison of two orders is fair.
    if (name != "seed") hold(name, value, other.contains(name) ? other[name] : nlohmann::json());
  // The participants, and whether they spun.
  if (first.contains("title") && second.contains("title")) hold("load", first["title"], second["title"]);
  return list;
}

using Rows = std::map<std::string, Figure>;

absl::StatusOr<Rows> rows_of(const nlohmann::json& run, const std::string& file) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<Figure> figures, figures_of(run, file));
  Rows rows;
  // The formatted name is key and printed text at once; a padded size sorts by its value.
  for (const Figure& figure : figures)
    rows[fmt::format("{:<38} {:<10}{:>12}", figure.path, figure.what, figure.bytes)] = figure;
  return rows;
}

bool has_rounds(const Figure& figure) {
  return figure.failed.empty() && !figure.rounds_us.empty() &&
         std::all_of(figure.rounds_us.begin(), figure.rounds_us.end(), [](double us) { return us > 0; });
}

/// Whether the row counts as a difference.
bool print_row(const std::string& name, const Figure* first, const Figure* second, size_t comparisons) {
  if (first == nullptr || second == nullptr) {
    fmt::print("  {} only in the {} run\n", name, first == nullptr ? "second" : "first");
    return true;
  }
  if (first->wrong > 0 || second->wrong > 0) {
    fmt::print("  {} wrong results in the {} run\n", name, first->wrong > 0 ? "first" : "second");
    return true;
  }
  if (!has_rounds(*first) || !has_rounds(*second)) {
    // A path that works in one run only is a difference, also without figures.
    const bool alike = has_rounds(*first) == has_rounds(*second);
    fmt::print("  {} {}\n", name,
               alike                ? "measured in neither"
               : has_rounds(*first) ? "not measured in the second run"
                                    : "not measured in the first run");
    return !alike;
  }
  const Ratio ratio = ratio_of(first->rounds_us, second->rounds_us, comparisons);
  const std::string interval = ratio.high > kNoInterval ? "too few rounds for an interval"
                                                        : fmt::format("[{:.3f}, {:.3f}]", ratio.low, ratio.high);
  fmt::print("  {} {:>11.2f} {:>11.2f} {:>8.3f}  {} {}\n", name, middle_of(first->rounds_us),
             middle_of(second->rounds_us), ratio.ratio, interval,
             !ratio.significant() ? ""
             : ratio.ratio > 1    ? "slower"
                                  : "faster");
  return ratio.significant();
}

}  // namespace

Ratio ratio_of(const std::vector<double>& first, const std::vector<double>& second, size_t comparisons) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // One round has no variance.
  if (first.size() < 2 || second.size() < 2) {
    const bool none = first.empty() || second.empty();
    return {none ? 1.0 : second.front() / first.front(), 0.0, kInfinity};
  }
  const Moments a = moments_of_logs(first), b = moments_of_logs(second);
  const double error = a.squared_error + b.squared_error, ratio = b.mean - a.mean;
  // All rounds equal: the interval is a point, and the division below would have no value.
  if (error == 0.0) return {std::exp(ratio), std::exp(ratio), std::exp(ratio)};
  // Welch and Satterthwaite: the two runs may differ in their variance.
  const double freedom = error * error /
                         (a.squared_error * a.squared_error / static_cast<double>(first.size() - 1) +
                          b.squared_error * b.squared_error / static_cast<double>(second.size() - 1));
  // Bonferroni: the level is divided by the number of rows, so that it holds for all rows together.
  const double reach = student_quantile(freedom, kFamilyLevel / static_cast<double>(std::max<size_t>(comparisons, 1))) *
                       std::sqrt(error);
  return {std::exp(ratio), std::exp(ratio - reach), std::exp(ratio + reach)};
}

absl::StatusOr<int> compare_runs(const std::string& first_file, const std::string& second_file, bool unlike) {
  GRADRAIL_ASSIGN_OR_RETURN(const nlohmann::json first, read_run(first_file));
  GRADRAIL_ASSIGN_OR_RETURN(const nlohmann::json second, read_run(second_file));
  const std::vector<std::string> different = differences(first, second);
  if (!different.empty() && !unlike) {
    return absl::InvalidArgumentError(
        fmt::format("the runs are not alike ({}); --unlike compares them all the same", fmt::join(different, "; ")));
  }
  GRADRAIL_ASSIGN_OR_RETURN(const Rows a, rows_of(first, first_file));
  GRADRAIL_ASSIGN_OR_RETURN(const Rows b, rows_of(second, second_file));
  std::map<std::string, std::pair<const Figure*, const Figure*>> both;
  // By name: a path that only one run has keeps its row.
  for (const auto& [name, figure] : a) both[name].first = &figure;
  for (const auto& [name, figure] : b) both[name].second = &figure;
  // Counted before the rows are printed: the level of each interval depends on their number.
  const auto comparable = static_cast<size_t>(std::count_if(both.begin(), both.end(), [](const auto& row) {
    const auto& [one, other] = row.second;
    return one != nullptr && other != nullptr && has_rounds(*one) && has_rounds(*other);
  }));
  for (const std::string& line : different) fmt::print("# NOT alike: {}\n", line);
  fmt::print("# {}: {}\n# {}: {}\n", first_file, first.value("version", "?"), second_file,
             second.value("version", "?"));
  fmt::print(
      "# ratio: second / first, with its interval at 95 % for all {} rows together; times: geometric means of the "
      "rounds\n",
      comparable);
  fmt::print("# {:<38} {:<10}{:>12} {:>11} {:>11} {:>8}\n", "path", "what", "size", "first us", "second us", "ratio");
  int count = 0;
  for (const auto& [name, figures] : both) count += print_row(name, figures.first, figures.second, comparable) ? 1 : 0;
  fmt::print("# {} of {} rows differ; {} were compared\n", count, both.size(), comparable);
  return count > 0 ? 1 : 0;
}

}  // namespace gradrail::bench
