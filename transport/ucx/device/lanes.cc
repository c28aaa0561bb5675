#include "transport/ucx/device/lanes.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace gradrail::transport::ucx {
namespace {

std::string printed(const std::function<void(FILE*)>& print) {
  char* text = nullptr;
  size_t bytes = 0;
  FILE* stream = open_memstream(&text, &bytes);
  if (stream == nullptr) return "";
  print(stream);
  fclose(stream);
  std::string result(text, bytes);
  free(text);
  return result;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

/// The first word of `text`, and what follows it.
std::string_view take_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  const std::string_view word = text.substr(0, text.find(' '));
  text.remove_prefix(word.size());
  return word;
}

bool is_rdma(std::string_view transport) {
  constexpr std::array<std::string_view, 4> kFamilies = {"rc", "ud", "dc", "srd"};
  return std::any_of(kFamilies.begin(), kFamilies.end(), [&](std::string_view family) {
    return transport == family || transport.substr(0, family.size() + 1) == std::string(family) + "_";
  });
}

void add_once(std::string& list, std::string_view name, std::string_view separator) {
  if (list.find(name) != std::string::npos) return;
  if (!list.empty()) list += separator;
  list += name;
}

}  // namespace

// #                 lane[0]:  5:rc_verbs/rxe0:1.0 md[4]      -> md[4]/ib/sysdev[255] rma_bw#0 am am_bw#0 wireup
Lanes parse_lanes(std::string_view text) {
  Lanes lanes;
  int carrying = 0, carrying_rdma = 0;
  for (std::string_view line : lines_of(text)) {
    const size_t start = line.find("lane[");
    if (start == std::string_view::npos) continue;
    line.remove_prefix(start);
    take_word(line);                              // lane[0]:
    std::string_view resource = take_word(line);  // 5:rc_verbs/rxe0:1.0
    resource.remove_prefix(std::min(resource.find(':') + 1, resource.size()));
    resource = resource.substr(0, resource.rfind('.'));
    bool carries = line.find(" rma_bw#") != std::string_view::npos;
    while (!line.empty()) carries = take_word(line) == "am" || carries;
    if (!carries) continue;
    ++carrying;
    carrying_rdma += is_rdma(resource.substr(0, resource.find('/'))) ? 1 : 0;
    add_once(lanes.text, resource, " + ");
  }
  lanes.rdma = carrying > 0 && carrying == carrying_rdma;
  if (lanes.text.empty()) lanes.text = "not wired up yet";
  return lanes;
}

Lanes lanes_of(ucp_ep_h endpoint) {
  return parse_lanes(printed([&](FILE* stream) { ucp_ep_print_info(endpoint, stream); }));
}

// #      resource 0  :  md 0  dev 0  flags -- tcp/lo
bool parse_resources(std::string_view text, std::string* names) {
  bool rdma = false;
  for (std::string_view line : lines_of(text)) {
    if (line.find(" resource ") == std::string_view::npos) continue;
    const std::string_view name = line.substr(std::min(line.rfind(' ') + 1, line.size()));
    const std::string_view transport = name.substr(0, name.find('/'));
    // ud alone is what every RDMA device has, for wire-up; rc, dc and srd ride on the same devices.
    rdma = rdma || is_rdma(transport);
    add_once(*names, name, ", ");
  }
  return rdma;
}

bool has_rdma_resource(ucp_context_h context, std::string* names) {
  return parse_resources(printed([&](FILE* stream) { ucp_context_print_info(context, stream); }), names);
}

}  // namespace gradrail::transport::ucx
