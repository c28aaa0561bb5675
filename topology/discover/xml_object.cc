#include "topology/discover/xml_object.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::topology {
namespace {

struct Type {
  std::string_view name;
  XmlKind kind;
};

/// These stand in each other; a package in a package makes no sense to hwloc's levels.
constexpr std::string_view kNested[] = {"Group", "Cache", "MemCache", "Bridge", "OSDev", "Misc"};

/// hwloc 1 and 2. Version 1 lists memory among the other objects, with near objects below it.
constexpr Type kTypes[] = {{"System", XmlKind::normal},   {"Machine", XmlKind::normal},  {"Package", XmlKind::normal},
                           {"Socket", XmlKind::normal},   {"Die", XmlKind::normal},      {"Group", XmlKind::normal},
                           {"Core", XmlKind::normal},     {"Cache", XmlKind::normal},    {"L1Cache", XmlKind::normal},
                           {"L2Cache", XmlKind::normal},  {"L3Cache", XmlKind::normal},  {"L4Cache", XmlKind::normal},
                           {"L5Cache", XmlKind::normal},  {"L1iCache", XmlKind::normal}, {"L2iCache", XmlKind::normal},
                           {"L3iCache", XmlKind::normal}, {"PU", XmlKind::cpu},          {"NUMANode", XmlKind::memory},
                           {"Node", XmlKind::memory},     {"MemCache", XmlKind::memory}, {"Bridge", XmlKind::io},
                           {"PCIDev", XmlKind::io},       {"OSDev", XmlKind::io},        {"Misc", XmlKind::misc}};

constexpr std::string_view kSets[] = {"cpuset", "complete_cpuset", "nodeset", "complete_nodeset"};
constexpr std::string_view kOtherSets[] = {"online_cpuset", "allowed_cpuset", "allowed_nodeset"};

template <typename List>
bool in(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

constexpr std::string_view kNumbers[] = {"os_index",       "cache_size",       "cache_linesize", "cache_associativity",
                                         "cache_type",     "local_memory",     "depth",          "kind",
                                         "subkind",        "dont_merge",       "osdev_type",     "efficiency",
                                         "pci_link_speed", "forced_efficiency"};

constexpr std::string_view kOthers[] = {"type",        "name",       "subtype",   "version", "value",
                                        "bridge_type", "bridge_pci", "pci_busid", "pci_type"};

bool is_number(std::string_view text) {
  double number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  return error == std::errc() && end == text.data() + text.size() && number >= 0;
}

bool is_whole_number(std::string_view text, uint64_t most) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number <= most;
}

template <typename... Numbers>
bool scans(const std::string& text, const char* format, int count, Numbers*... numbers) {
  int consumed = 0;
  return std::sscanf(text.c_str(), format, numbers..., &consumed) == count && consumed == static_cast<int>(text.size());
}

bool is_pci_address(const std::string& text) {
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  return scans(text, "%x:%2x:%2x.%1x%n", 4, &domain, &bus, &device, &function) && device < 32 && function < 8;
}

bool is_bus_range(const std::string& text) {
  unsigned domain = 0, low = 0, high = 0;
  return scans(text, "%x:[%2x-%2x]%n", 3, &domain, &low, &high) && low <= high;
}

bool is_pci_type(const std::string& text) {
  unsigned part[6] = {};
  return scans(text, "%4x [%4x:%4x] [%4x:%4x] %2x%n", 6, &part[0], &part[1], &part[2], &part[3], &part[4], &part[5]);
}

absl::Status wrong(std::string_view attribute, const std::string& value) {
  return absl::InvalidArgumentError(
      fmt::format("{}=\"{}\" is no value that hwloc writes", attribute, value.substr(0, 60)));
}

/// Largest values of the numbers that hwloc uses as an index or a shift.
uint64_t most_of(std::string_view attribute, std::string_view type) {
  if (attribute == "os_index")
    return type == "PU" || type == "NUMANode" || type == "Node" ? CpuSet::kMaxCpu : UINT32_MAX;
  if (attribute == "osdev_type") return 5;
  if (attribute == "cache_type") return 2;
  if (attribute == "depth") return type == "Bridge" ? 255 : 5;
  if (attribute == "local_memory" || attribute == "cache_size") return UINT64_MAX;
  return INT32_MAX;
}

absl::Status check_value(const XmlAttribute& attribute, std::string_view type) {
  const std::string_view name = attribute.name;
  bool good = true;
  if (in(kSets, name)) return absl::OkStatus();  // check_object keeps those, and so reads them itself
  if (in(kOtherSets, name)) return parse_bitmap(attribute.value).status();
  if (name == "pci_link_speed") {
    good = is_number(attribute.value);
  } else if (in(kNumbers, name)) {
    // hwloc writes "cache_associativity" -1 for a cache that is fully so.
    good = (name == "cache_associativity" && attribute.value == "-1") ||
           is_whole_number(attribute.value, most_of(name, type));
  } else if (name == "bridge_type") {
    good = attribute.value == "0-1" || attribute.value == "1-1";
  } else if (name == "bridge_pci") {
    good = is_bus_range(attribute.value);
  } else if (name == "pci_busid") {
    good = is_pci_address(attribute.value);
  } else if (name == "pci_type") {
    good = is_pci_type(attribute.value);
  }
  return good ? absl::OkStatus() : wrong(name, attribute.value);
}

/// Requirements of hwloc that hwloc does not check: without a complete set it dereferences a null pointer.
absl::Status check_required(const XmlTag& tag, const XmlObject& object, bool version_1) {
  const std::string& type = object.type;
  const auto need = [&](std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names)
      if (tag.find(name) == nullptr) return absl::InvalidArgumentError(fmt::format("a {} without {}", type, name));
    return absl::OkStatus();
  };
  if (type == "PCIDev") return need({"pci_busid", "pci_type"});
  if (type == "OSDev") return need({"name", "osdev_type"});
  if (type == "Cache") GRADRAIL_RETURN_IF_ERROR(need({"depth"}));
  if (type == "PU" || type == "NUMANode" || type == "Node") GRADRAIL_RETURN_IF_ERROR(need({"os_index"}));
  if (object.kind != XmlKind::io) {
    GRADRAIL_RETURN_IF_ERROR(need({"cpuset", "complete_cpuset"}));
    const bool has_nodes = tag.find("nodeset") != nullptr || tag.find("complete_nodeset") != nullptr;
    return has_nodes || !version_1 ? need({"nodeset", "complete_nodeset"}) : absl::OkStatus();
  }
  GRADRAIL_RETURN_IF_ERROR(need({"bridge_type", "bridge_pci"}));
  return *tag.find("bridge_type") == "0-1" ? absl::OkStatus() : need({"pci_busid", "pci_type"});
}

}  // namespace

bool is_known_attribute(std::string_view name) {
  return in(kSets, name) || in(kOtherSets, name) || in(kNumbers, name) || in(kOthers, name);
}

absl::StatusOr<CpuSet> parse_bitmap(std::string_view text) {
  constexpr int kWordBits = 32;
  const auto bad = [&] {
    return absl::InvalidArgumentError(
        fmt::format("\"{}\" is no set of numbers up to {}, as hwloc writes them (0x000000ff,0xff000000)",
                    text.substr(0, 60), CpuSet::kMaxCpu));
  };
  CpuSet set;
  const auto words = std::count(text.begin(), text.end(), ',') + 1;
  if (words > (CpuSet::kMaxCpu + 1) / kWordBits) return bad();
  for (auto word = words; word-- > 0;) {
    std::string_view digits = text.substr(0, text.find(','));
    text.remove_prefix(std::min(digits.size() + 1, text.size()));
    if (digits.empty()) continue;  // a word of zeros
    if (digits.starts_with("0x")) digits.remove_prefix(2);
    uint32_t bits = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits, 16);
    if (error != std::errc() || end != digits.data() + digits.size()) return bad();
    for (; bits != 0; bits &= bits - 1) set.insert(static_cast<int>(word) * kWordBits + std::countr_zero(bits));
  }
  return set;
}

absl::StatusOr<XmlObject> check_object(const XmlTag& tag, bool version_1) {
  const std::string* type = tag.find("type");
  const auto known = type == nullptr ? std::end(kTypes)
                                     : std::find_if(std::begin(kTypes), std::end(kTypes),
                                                    [&](const Type& candidate) { return candidate.name == *type; });
  if (known == std::end(kTypes))
    return absl::InvalidArgumentError(fmt::format("an object of type \"{}\", which this version does not know",
                                                  type == nullptr ? "" : type->substr(0, 60)));
  XmlObject object{.type = *type, .kind = known->kind};
  if (!in(kNested, *type)) object.types = uint32_t{1} << (known - std::begin(kTypes));
  if (version_1 && object.kind == XmlKind::memory) object.kind = XmlKind::normal;
  if (object.kind == XmlKind::misc) return object;
  for (const XmlAttribute& attribute : tag.attributes)
    if (is_known_attribute(attribute.name)) GRADRAIL_RETURN_IF_ERROR(check_value(attribute, *type));
  GRADRAIL_RETURN_IF_ERROR(check_required(tag, object, version_1));
  for (const auto& [name, set] :
       {std::pair("cpuset", &object.cpus), std::pair("complete_cpuset", &object.complete_cpus),
        std::pair("nodeset", &object.nodes), std::pair("complete_nodeset", &object.complete_nodes)}) {
    const std::string* text = tag.find(name);
    if (text == nullptr) continue;
    absl::StatusOr<CpuSet> parsed = parse_bitmap(*text);
    if (!parsed.ok()) return parsed.status();
    *set = *std::move(parsed);
  }
  if (!object.complete_cpus.includes(object.cpus) || !object.complete_nodes.includes(object.nodes))
    return absl::InvalidArgumentError(fmt::format("a {} with a complete set that lacks part of its set", *type));
  if (object.kind == XmlKind::cpu && object.cpus != CpuSet{std::atoi(tag.find("os_index")->c_str())})
    return absl::InvalidArgumentError("a PU with a cpuset other than its own number");
  return object;
}

absl::Status check_place(XmlObject& object, XmlObject* parent) {
  const bool is_root = object.type == "Machine" || object.type == "System";
  if (parent == nullptr) {
    return is_root
               ? absl::OkStatus()
               : absl::InvalidArgumentError(fmt::format("a {} at the root, where a Machine should be", object.type));
  }
  if (object.kind == XmlKind::misc) return absl::OkStatus();
  const bool io = object.kind == XmlKind::io;
  const bool fits = !is_root && parent->kind != XmlKind::misc && (parent->kind != XmlKind::io || io) &&
                    (parent->kind != XmlKind::cpu || io);
  const bool repeats = (parent->types & object.types) != 0;
  if (!fits || repeats) return absl::InvalidArgumentError(fmt::format("a {} below a {}", object.type, parent->type));
  object.types |= parent->types;
  if (io) return absl::OkStatus();
  if (!parent->cpus.includes(object.cpus) || !parent->complete_cpus.includes(object.complete_cpus) ||
      !parent->nodes.includes(object.nodes) || !parent->complete_nodes.includes(object.complete_nodes)) {
    return absl::InvalidArgumentError(
        fmt::format("a {} has cpus or memory that the {} above it does not have", object.type, parent->type));
  }
  if (object.kind == XmlKind::memory) return absl::OkStatus();
  if (parent->taken.intersects(object.complete_cpus))
    return absl::InvalidArgumentError(fmt::format("two objects below a {} share cpus", parent->type));
  if (!object.complete_cpus.empty() &&
      object.complete_cpus.first() < std::exchange(parent->last_first, object.complete_cpus.first()))
    return absl::InvalidArgumentError(
        fmt::format("the objects below a {} are not in the order of their cpus", parent->type));
  parent->taken = parent->taken | object.complete_cpus;
  return absl::OkStatus();
}

}  // namespace gradrail::topology
