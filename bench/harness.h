#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gradrail::bench {

/// What one contender measured at one size.
struct Sample {
  std::string contender;
  uint64_t bytes = 0;  ///< one way: gradient, and as many parameters back
  uint64_t iterations = 0;
  double min_us = 0.0;
  double p50_us = 0.0;
  double p99_us = 0.0;
  uint64_t wrong = 0;  ///< elements that were not what they had to be
  std::string failed;  ///< why there is no figure
};

/// Something that exchanges `bytes` over and over for about `seconds` and checks the result.
struct Contender {
  std::string name;
  std::function<Sample(uint64_t bytes, double seconds)> run;
};

/// Times `body` for about `seconds` after a warm-up of a tenth of that; at least 5 times.
/// `prepare` runs before each and is not timed.
Sample measure(double seconds, const std::function<void()>& prepare, const std::function<void()>& body);

/// Runs a contender in a forked process of its own, so that threads, memory and failures of one do not touch the next.
/// After the deadline it is killed and the sample says so.
Sample run_apart(const Contender& contender, uint64_t bytes, double seconds);

/// One line of text, without newline, and back.
std::string to_line(const Sample& sample);
Sample from_line(const std::string& line);

/// "4096", "318040", "64M" …; 0 when it is no size.
uint64_t parse_size(const std::string& text);

/// Processor, cores, kernel: what a figure means nothing without.
std::string machine();

}  // namespace gradrail::bench
