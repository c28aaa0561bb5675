#include "tests/gpu/simulated/configuration.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace gradrail::simulated {
namespace {

[[noreturn]] void refuse(const std::string& word) {
  std::fprintf(stderr, "GRADRAIL_SIMULATED_GPU: what is '%s'? (tests/gpu/simulated/configuration.h)\n", word.c_str());
  std::_Exit(99);
}

uint64_t number(const std::string& text, const std::string& word) {
  char* end = nullptr;
  uint64_t value = std::strtoull(text.c_str(), &end, 10);
  switch (*end) {
    case 'K':
      value <<= 10, ++end;
      break;
    case 'M':
      value <<= 20, ++end;
      break;
    case 'G':
      value <<= 30, ++end;
      break;
    default:
      break;
  }
  if (text.empty() || *end != '\0') refuse(word);
  return value;
}

void add(std::map<int, uint64_t>& when, const std::string& value, const std::string& word) {
  const size_t at = value.find('@');
  if (at == std::string::npos) refuse(word);
  when[static_cast<int>(number(value.substr(0, at), word))] = number(value.substr(at + 1), word);
}

}  // namespace

Configuration Configuration::parse(const std::string& words) {
  Configuration result;
  std::istringstream list(words);
  for (std::string word; std::getline(list, word, ',');) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) refuse(word);
    const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
    const auto whole = [&] { return static_cast<int>(number(value, word)); };
    if (key == "devices")
      result.devices = whole();
    else if (key == "memory")
      result.memory_bytes = number(value, word);
    else if (key == "context")
      result.context_bytes = number(value, word);
    else if (key == "driver")
      result.driver_version = whole();
    else if (key == "init")
      result.init_result = whole();
    else if (key == "start_ms")
      result.start_ms = whole();
    else if (key == "computes")
      result.computes = whole() != 0;
    else if (key == "delay")
      result.delay_us = whole();
    else if (key == "compute")
      result.compute_major = whole();
    else if (key == "pinned_addresses")
      result.pinned_addresses = whole() != 0;
    else if (key == "pin")
      result.pin_result = whole();
    else if (key == "ipc")
      result.ipc_result = whole();
    else if (key == "capture")
      result.capture_result = whole();
    else if (key == "capture_write")
      result.capture_write_result = whole();
    else if (key == "instantiate")
      result.instantiate_result = whole();
    else if (key == "dma_buf")
      result.dma_buf = whole() != 0;
    else if (key == "stream_writes")
      result.stream_writes = whole() != 0;
    else if (key == "ordering")
      result.ordering = whole();
    else if (key == "coherent")
      result.coherent = whole() != 0;
    else if (key == "open")
      result.open_result = whole();
    else if (key == "flush")
      result.flushes_writes = whole() != 0;
    else if (key == "image")
      result.image = value;
    else if (key == "attribute")
      add(result.attributes, value, word);
    else if (key == "lose")
      add(result.lose, value, word);
    else if (key == "hang")
      add(result.hang, value, word);
    else if (key == "stall")
      add(result.stall, value, word);
    else if (key == "fault")
      add(result.fault, value, word);
    else
      refuse(word);
  }
  return result;
}

Configuration Configuration::from_environment() {
  const char* words = std::getenv("GRADRAIL_SIMULATED_GPU");
  return parse(words == nullptr ? "" : words);
}

}  // namespace gradrail::simulated
