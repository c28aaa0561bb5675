#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "bench/report/figure.h"

namespace gradrail::bench {

/// Times `body` for about `seconds` after a warm-up of a tenth of that; at least 5 times.
/// `prepare` runs before each and is not timed.
Times measure(double seconds, const std::function<void()>& prepare, const std::function<void()>& body);

/// "4096", "318040", "64M" …; 0 when it is no size.
uint64_t parse_size(const std::string& text);

/// The text of an exception of nlohmann's JSON library without the name in front of it:
/// "[json.exception.parse_error.101] parse error at line 1, …".
std::string json_error_text(const std::exception& error);

/// Processor, cores and kernel. A figure without them has no meaning.
std::string machine();

}  // namespace gradrail::bench
