#include "topology/discover_xml.h"

#include <algorithm>
#include <vector>

#include "base/status.h"
#include "fmt/format.h"
#include "topology/discover_xml_reader.h"

namespace gradrail::topology {
namespace {

constexpr size_t kMaxDepth = 128;  // a machine has about ten levels, and some switches below each other

/// What is on the way from the document to the tag we are at.
struct Frame {
  std::string_view name;
  bool kept = false;
};

class Checker {
 public:
  explicit Checker(std::string_view text) : reader_(text) { plain_.reserve(text.size()); }

  absl::StatusOr<std::string> run();

 private:
  absl::Status take(const XmlTag& tag);
  absl::Status open(const XmlTag& tag);
  absl::Status close(const XmlTag& tag);
  void write(const XmlTag& tag);

  XmlReader reader_;
  std::string plain_;
  std::vector<Frame> stack_;
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
  const std::string_view above = stack_.empty() ? "" : stack_.back().name;
  const bool known = tag.name == "topology" ? stack_.empty()
                     : tag.name == "object" || tag.name == "cpukind"
                         ? above == "topology" || (above == "object" && tag.name == "object")
                     : tag.name == "info" ? above == "object" || above == "cpukind"
                                          : false;
  stack_.push_back({.name = tag.name, .kept = known && (stack_.empty() || stack_.back().kept)});
  if (stack_.back().kept) write(tag);
  return absl::OkStatus();
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
