#include "topology/discover/xml_reader.h"

#include <algorithm>
#include <charconv>

#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::topology {
namespace {

constexpr size_t kMaxAttributes = 64;  // hwloc writes about twenty

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.' || c == ':';
}

/// The character that an entity stands for; 0: none that we take. Numbers beyond ASCII become '?': they occur in names
/// alone.
char entity(std::string_view name) {
  if (name == "amp") return '&';
  if (name == "lt") return '<';
  if (name == "gt") return '>';
  if (name == "quot") return '"';
  if (name == "apos") return '\'';
  if (!name.starts_with('#')) return 0;
  name.remove_prefix(1);
  const int base = name.starts_with('x') ? 16 : 10;
  if (base == 16) name.remove_prefix(1);
  unsigned code = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), code, base);
  if (error != std::errc() || end != name.data() + name.size() || code == 0) return 0;
  return code < 0x80 ? static_cast<char>(code) : '?';
}

}  // namespace

const std::string* XmlTag::find(std::string_view attribute) const {
  const auto found = std::find_if(attributes.begin(), attributes.end(),
                                  [&](const XmlAttribute& candidate) { return candidate.name == attribute; });
  return found == attributes.end() ? nullptr : &found->value;
}

int XmlReader::line() const {
  return 1 + static_cast<int>(std::count(text_.begin(), text_.end() - static_cast<ptrdiff_t>(rest_.size()), '\n'));
}

absl::Status XmlReader::error(const std::string& cause) const {
  return absl::InvalidArgumentError(fmt::format("line {}: {}", line(), cause));
}

void XmlReader::skip_space() {
  while (!rest_.empty() && is_space(rest_.front())) rest_.remove_prefix(1);
}

std::string_view XmlReader::read_name() {
  size_t length = 0;
  while (length < rest_.size() && is_name(rest_[length])) ++length;
  const std::string_view name = rest_.substr(0, length);
  rest_.remove_prefix(length);
  return name;
}

absl::Status XmlReader::skip_past(std::string_view begin, std::string_view end) {
  const size_t found = rest_.find(end, begin.size());
  if (found == std::string_view::npos) return error(fmt::format("'{}' without its '{}'", begin, end));
  rest_.remove_prefix(found + end.size());
  return absl::OkStatus();
}

absl::Status XmlReader::skip_document_type() {
  const size_t end = rest_.find_first_of("[>", 1);
  if (end == std::string_view::npos) return error("a document type without its end");
  if (rest_[end] == '[') return error("the document type declares entities of its own, which no file of hwloc does");
  rest_.remove_prefix(end + 1);
  return absl::OkStatus();
}

/// Past one thing that is no tag; false: the next thing is a tag, or the end.
absl::StatusOr<bool> XmlReader::skip_no_tag() {
  rest_.remove_prefix(std::min(rest_.find('<'), rest_.size()));
  absl::Status status;
  if (rest_.starts_with("<!--")) {
    status = skip_past("<!--", "-->");
  } else if (rest_.starts_with("<?")) {
    status = skip_past("<?", "?>");
  } else if (rest_.starts_with("<!DOCTYPE")) {
    status = skip_document_type();
  } else if (rest_.starts_with("<!")) {
    status = error("a declaration that files of hwloc do not have");
  } else {
    return false;
  }
  if (!status.ok()) return status;
  return true;
}

absl::StatusOr<std::optional<XmlTag>> XmlReader::next() {
  for (;;) {
    const absl::StatusOr<bool> skipped = skip_no_tag();
    if (!skipped.ok()) return skipped.status();
    if (!*skipped) break;
  }
  if (rest_.empty()) return std::nullopt;
  rest_.remove_prefix(1);
  XmlTag tag;
  if (rest_.starts_with('/')) {
    tag.kind = XmlTag::Kind::close;
    rest_.remove_prefix(1);
  }
  tag.name = read_name();
  if (tag.name.empty()) return error("'<' without a name");
  GRADRAIL_RETURN_IF_ERROR(read_attributes(tag));
  return tag;
}

absl::Status XmlReader::read_attributes(XmlTag& tag) {
  for (;;) {
    skip_space();
    if (rest_.starts_with('>')) {
      rest_.remove_prefix(1);
      return absl::OkStatus();
    }
    if (rest_.starts_with("/>") && tag.kind == XmlTag::Kind::open) {
      rest_.remove_prefix(2);
      tag.kind = XmlTag::Kind::empty;
      return absl::OkStatus();
    }
    if (tag.kind == XmlTag::Kind::close || tag.attributes.size() >= kMaxAttributes)
      return error(fmt::format("the tag '{}' does not end", tag.name));
    absl::StatusOr<XmlAttribute> attribute = read_attribute();
    if (!attribute.ok()) return attribute.status();
    if (tag.find(attribute->name) != nullptr) return error(fmt::format("two attributes '{}'", attribute->name));
    tag.attributes.push_back(*std::move(attribute));
  }
}

absl::StatusOr<XmlAttribute> XmlReader::read_attribute() {
  XmlAttribute attribute{.name = read_name()};
  skip_space();
  if (attribute.name.empty() || !rest_.starts_with('=')) return error("a tag that is none of XML (name=\"value\")");
  rest_.remove_prefix(1);
  skip_space();
  if (!rest_.starts_with('"') && !rest_.starts_with('\''))
    return error(fmt::format("'{}' has no quoted value", attribute.name));
  const size_t end = rest_.find(rest_.front(), 1);
  if (end == std::string_view::npos) return error(fmt::format("the value of '{}' does not end", attribute.name));
  absl::StatusOr<std::string> value = resolve(rest_.substr(1, end - 1));
  if (!value.ok()) return value.status();
  attribute.value = *std::move(value);
  rest_.remove_prefix(end + 1);
  return attribute;
}

absl::StatusOr<std::string> XmlReader::resolve(std::string_view raw) const {
  std::string value;
  value.reserve(raw.size());
  while (!raw.empty()) {
    const size_t plain = std::min(raw.find_first_of(std::string_view("&<\0", 3)), raw.size());
    value += raw.substr(0, plain);
    raw.remove_prefix(plain);
    if (raw.empty()) break;
    const size_t end = raw.find(';');
    const char c = raw.front() == '&' && end != std::string_view::npos ? entity(raw.substr(1, end - 1)) : 0;
    if (c == 0) return error("a value holds '<', a zero byte, or an entity that is none of XML's own");
    value += c;
    raw.remove_prefix(end + 1);
  }
  return value;
}

}  // namespace gradrail::topology
