#include "topology/discover/xml.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "fmt/format.h"
#include "topology/discover/xml_object.h"
#include "topology/discover/xml_reader.h"

namespace gradrail::topology {
namespace {

constexpr size_t kMaxDepth = 128;  // a machine has about ten levels, and some switches below each other

/// The open elements from the document to the current tag.
struct Frame {
  std::string_view name;
  bool kept = false;
  std::optional<XmlObject> object;
};

class Checker {
 public:
  explicit Checker(std::string_view text) : reader_(text) { plain_.reserve(text.size()); }

  absl::StatusOr<std::string> run();

 private:
  absl::Status take(const XmlTag& tag);
  absl::Status open(const XmlTag& tag);
  absl::Status close(const XmlTag& tag);
  bool is_wanted(const XmlTag& tag) const;
  absl::Status check(const XmlTag& tag, Frame& frame);
  absl::Status check_version(const XmlTag& tag);
  void write(const XmlTag& tag);

  XmlReader reader_;
  std::string plain_;
  std::vector<Frame> stack_;
  CpuSet nodes_;
  bool has_root_ = false;
  bool version_1_ = false;
  bool finished_ = false;
};

void write_value(std::string& to, std::string_view value) {
  for (const char c : value) {
    switch (c) {
      case '&':
        to += "&amp;";
        break;
      case '<':
        to += "&lt;";
        break;
      case '>':
        to += "&gt;";
        break;
      case '"':
        to += "&quot;";
        break;
      default:
        to += c >= ' ' && c <= '~' ? c : '?';
    }
  }
}

/// hwloc stops at attributes it does not know, and loses the object it was making.
bool is_wanted_attribute(std::string_view tag, std::string_view attribute) {
  if (tag == "info") return attribute == "name" || attribute == "value";
  if (tag == "cpukind") return attribute == "cpuset" || attribute == "forced_efficiency";
  return is_known_attribute(attribute);
}

absl::StatusOr<std::string> Checker::run() {
  plain_ = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n";
  for (;;) {
    const absl::StatusOr<std::optional<XmlTag>> tag = reader_.next();
    if (!tag.ok()) return tag.status();
    if (!tag->has_value()) break;
    GRADRAIL_RETURN_IF_ERROR(take(**tag));
  }
  if (!stack_.empty())
    return reader_.error(fmt::format("the text ends within '{}': the file is cut off", stack_.back().name));
  if (!finished_)
    return absl::InvalidArgumentError("no XML of hwloc: it has no <topology> (lstopo FILE.xml writes one)");
  return std::move(plain_);
}

absl::Status Checker::take(const XmlTag& tag) {
  if (tag.kind == XmlTag::Kind::close) return close(tag);
  GRADRAIL_RETURN_IF_ERROR(open(tag));
  return tag.kind == XmlTag::Kind::empty ? close(tag) : absl::OkStatus();
}

absl::Status Checker::open(const XmlTag& tag) {
  if (finished_) return reader_.error(fmt::format("'{}' after the end of the topology", tag.name));
  if (stack_.size() >= kMaxDepth) return reader_.error(fmt::format("more than {} levels of tags", kMaxDepth));
  if (stack_.empty() && tag.name != "topology")
    return reader_.error(
        fmt::format("'{}' where <topology> should be: no XML of hwloc (lstopo FILE.xml writes one)", tag.name));
  Frame frame{.name = tag.name};
  frame.kept = is_wanted(tag);
  if (frame.kept) {
    if (const absl::Status status = check(tag, frame); !status.ok())
      return reader_.error(std::string(message_of(status)));
    frame.kept = !frame.object || frame.object->kind != XmlKind::misc;
  }
  if (frame.kept) write(tag);
  stack_.push_back(std::move(frame));
  return absl::OkStatus();
}

/// Known objects at their permitted positions. Machines of version 2 also hold distances, memory attributes and data of
/// other programs, which are dropped.
bool Checker::is_wanted(const XmlTag& tag) const {
  if (stack_.empty()) return true;
  if (!stack_.back().kept) return false;
  const std::string_view above = stack_.back().name;
  if (tag.name == "object") return above == "topology" || above == "object";
  if (tag.name == "info") return above == "object" || above == "cpukind";
  return tag.name == "cpukind" && above == "topology";
}

absl::Status Checker::check(const XmlTag& tag, Frame& frame) {
  if (tag.name == "topology") return check_version(tag);
  if (tag.name == "info")
    return tag.find("name") != nullptr && tag.find("value") != nullptr
               ? absl::OkStatus()
               : absl::InvalidArgumentError("an info without name or value");
  if (tag.name == "cpukind") {
    const std::string* cpus = tag.find("cpuset");
    return cpus == nullptr ? absl::InvalidArgumentError("a cpukind without cpuset") : parse_bitmap(*cpus).status();
  }
  absl::StatusOr<XmlObject> object = check_object(tag, version_1_);
  if (!object.ok()) return object.status();
  XmlObject* parent = stack_.back().object ? &*stack_.back().object : nullptr;
  GRADRAIL_RETURN_IF_ERROR(check_place(*object, parent));
  if (parent == nullptr && std::exchange(has_root_, true))
    return absl::InvalidArgumentError("two machines in one topology");
  // Memory has numbers of its own; in version 1 it stands in the tree of the cpus, and so it takes its cpus there.
  if (object->type == "NUMANode" || object->type == "Node") {
    const int number = std::atoi(tag.find("os_index")->c_str());
    if (nodes_.contains(number))
      return absl::InvalidArgumentError(fmt::format("two NUMA nodes with number {}", number));
    nodes_.insert(number);
  }
  frame.object = *std::move(object);
  return absl::OkStatus();
}

absl::Status Checker::check_version(const XmlTag& tag) {
  const std::string* version = tag.find("version");
  version_1_ = version == nullptr || version->starts_with("1.");
  if (version == nullptr || version->starts_with("1.") || version->starts_with("2.")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("format \"{}\" of hwloc's XML, where 1 and 2 are known (lstopo --of xml with hwloc 2 writes it)",
                  version->substr(0, 20)));
}

absl::Status Checker::close(const XmlTag& tag) {
  if (stack_.empty() || stack_.back().name != tag.name)
    return reader_.error(fmt::format("the end of '{}' is not where it began", tag.name));
  if (stack_.back().kept) plain_ += fmt::format("</{}>\n", tag.name);
  stack_.pop_back();
  finished_ = stack_.empty();
  return absl::OkStatus();
}

void Checker::write(const XmlTag& tag) {
  plain_ += '<';
  plain_ += tag.name;
  for (const XmlAttribute& attribute : tag.attributes) {
    if (!is_wanted_attribute(tag.name, attribute.name)) continue;
    plain_ += ' ';
    plain_ += attribute.name;
    plain_ += "=\"";
    write_value(plain_, attribute.value);
    plain_ += '"';
  }
  plain_ += tag.name == "info" ? ">" : ">\n";
}

}  // namespace

absl::StatusOr<std::string> check_xml(const std::string& text) { return Checker(text).run(); }

}  // namespace gradrail::topology
