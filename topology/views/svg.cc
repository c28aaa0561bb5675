#include "topology/views/svg.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/utf8.h"
#include "fmt/format.h"
#include "topology/views/outline.h"

namespace gradrail::topology {
namespace {

// All lengths in pixels.
constexpr double kPad = 10;
// The text has 12 px, and a line half as much again. Boxes and chips align with it.
constexpr double kLine = 18;  ///< height of a line of text
constexpr double kBoldCharacter = 8.2;
constexpr double kCharacter = 6.9;  ///< width in 12 px sans-serif, on the wide side
constexpr double kCellHeight = 34;  ///< the cpus above the marks of the threads
constexpr double kCellGap = 4;
constexpr double kChip = 14;
constexpr double kMarkCharacter = 5.8;  ///< width in 10 px
// The least width of the legend: below the picture of a small machine it would become a column.
constexpr double kNarrowLegend = 600;
// A divisor of most core counts: rows of 12 are full on processors with 24, 48 or 96 cores.
constexpr size_t kCellsPerRow = 12;
constexpr size_t kMostMarks = 4;       ///< number in a cell
constexpr size_t kLongestDetail = 64;  ///< bytes; the tree has the rest

// Palette of Okabe and Ito (2008): distinguishable with any colour vision. After the last colour the first one follows,
// and the mark distinguishes threads of one colour.
constexpr std::array<const char*, 8> kColours = {"#56b4e9", "#e69f00", "#009e73", "#f0e442",
                                                 "#cc79a7", "#0072b2", "#d55e00", "#9ad0a0"};

const char* colour_of(int occupant) { return kColours[static_cast<size_t>(occupant) % kColours.size()]; }

/// Black on the blue of the palette is not readable.
bool is_dark(int occupant) { return std::string_view(colour_of(occupant)) == "#0072b2"; }

std::string escape(std::string_view text) {
  std::string safe;
  while (!text.empty()) {
    // The name of a machine can be the path of a file, and paths need not be UTF-8.
    const size_t bytes = utf8_character_bytes(text);
    const std::string_view character = text.substr(0, std::max<size_t>(bytes, 1));
    text.remove_prefix(character.size());
    const char c = character[0];
    switch (c) {
      case '<':
        // Files that the user may have received contain the names of machines and devices: no text may become an
        // element.
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '&':
        safe += "&amp;";
        break;
      case '"':
        safe += "&quot;";
        break;
      // XML 1.0 forbids most control characters and two others, even as references.
      default:
        const bool is_forbidden =
            bytes == 0 || (bytes == 1 && is_control(c)) || character == "\uFFFE" || character == "\uFFFF";
        safe += is_forbidden ? "?" : character;
    }
  }
  return safe;
}

std::string shortened(const std::string& text) {
  // A long path of a file would make the whole picture as wide.
  if (text.size() <= kLongestDetail) return text;
  size_t end = kLongestDetail - 3;
  // A part of a UTF-8 character makes the file invalid XML. Each byte but the first is 10xxxxxx.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

// An estimate: the fonts of the viewer are not known here.
double text_width(std::string_view text) { return static_cast<double>(text.size()) * kCharacter; }

double mark_width(std::string_view mark) { return static_cast<double>(mark.size()) * kMarkCharacter + 6; }

double title_width(const Box& box) { return static_cast<double>(box.title.size()) * kBoldCharacter + 8; }

std::string cpu_list(const CoreSlot& slot) {
  CpuSet cpus;
  for (const int cpu : slot.cpus) cpus.insert(cpu);
  return cpus.to_string();
}

/// A box with its place on the paper; x and y relative to the box around it.
struct Laid {
  const Box* box = nullptr;
  double x = 0, y = 0, width = 0, height = 0;
  double cell_width = 0;
  double cells_y = 0;
  std::vector<Laid> inside;
};

size_t columns_of(const Box& box) {
  const auto large = std::count_if(box.inside.begin(), box.inside.end(), [](const Box& inner) {
    return inner.kind == Box::Kind::package || inner.kind == Box::Kind::numa_node;
  });
  // Up to four packages are drawn beside each other; more would not fit on a screen.
  if (box.kind == Box::Kind::machine) return large > 4 ? 4 : static_cast<size_t>(std::max<long>(1, large));
  return large >= 4 ? 2 : 1;
}

std::string marks_of(const CoreSlot& slot, const std::vector<Occupant>& occupants) {
  std::string marks;
  for (size_t i = 0; i < slot.occupants.size(); ++i) {
    // A core of a crowded host may have many threads; the table has all of them.
    if (i == kMostMarks) return marks + fmt::format(" +{}", slot.occupants.size() - i);
    marks += (i > 0 ? " " : "") + occupants[static_cast<size_t>(slot.occupants[i])].mark;
  }
  return marks;
}

void lay_cells(Laid& laid, const std::vector<Occupant>& occupants) {
  const std::vector<CoreSlot>& slots = laid.box->slots;
  if (slots.empty()) return;
  // Cells of a box are equally wide, so that they form a grid.
  for (const CoreSlot& slot : slots) {
    laid.cell_width =
        std::max({laid.cell_width, text_width(cpu_list(slot)) + 8, mark_width(marks_of(slot, occupants))});
  }
  const size_t columns = std::min(slots.size(), kCellsPerRow);
  const size_t rows = (slots.size() + columns - 1) / columns;
  laid.cells_y = laid.height;
  laid.width = std::max(laid.width, 2 * kPad + static_cast<double>(columns) * (laid.cell_width + kCellGap));
  laid.height += static_cast<double>(rows) * (kCellHeight + kCellGap) + kPad / 2;
}

/// Inner boxes in rows of so many columns: all of a column equally wide, each row as high as its highest.
void lay_inside(Laid& laid) {
  const size_t columns = columns_of(*laid.box);
  // The layout has two steps: sizes from the inside outwards here, then stretch() from the outside inwards.
  std::vector<double> widths(columns, 0);
  for (size_t i = 0; i < laid.inside.size(); ++i)
    widths[i % columns] = std::max(widths[i % columns], laid.inside[i].width);
  for (size_t first = 0; first < laid.inside.size(); first += columns) {
    double x = kPad, height = 0;
    for (size_t i = first; i < std::min(first + columns, laid.inside.size()); ++i) {
      laid.inside[i].x = x;
      laid.inside[i].y = laid.height;
      x += widths[i % columns] + kPad;
      height = std::max(height, laid.inside[i].height);
    }
    laid.width = std::max(laid.width, x);
    laid.height += height + kPad;
  }
}

Laid lay(const Box& box, const std::vector<Occupant>& occupants) {
  Laid laid{.box = &box};
  double chips = 0;
  for (const int occupant : box.occupants) chips += mark_width(occupants[static_cast<size_t>(occupant)].mark) + 4;
  // The head of a box decides on its least width: title, detail and the marks of its users.
  laid.width = 2 * kPad + title_width(box) + text_width(shortened(box.detail)) + chips;
  laid.height = kPad / 2 + kLine + kPad / 2;
  lay_cells(laid, occupants);
  for (const Box& inner : box.inside) laid.inside.push_back(lay(inner, occupants));
  lay_inside(laid);
  return laid;
}

/// A single box in a row is as wide as the box around it, so that edges align.
void stretch(Laid& laid) {
  const bool stacked = columns_of(*laid.box) == 1;
  for (Laid& inner : laid.inside) {
    if (stacked) inner.width = laid.width - 2 * kPad;
    stretch(inner);
  }
}

class Picture {
 public:
  explicit Picture(const Outline& outline) : outline_(outline) {}

  std::string draw() {
    Laid machine = lay(outline_.machine, outline_.occupants);
    stretch(machine);
    // Drawn first, because the size of the picture depends on it; elements that follow do not overlap it.
    const double legend = draw_legend(machine.height + 2 * kPad, std::max(machine.width, kNarrowLegend));
    draw_box(machine, kPad, kPad);
    const double width = std::max(machine.width, legend_width_) + 2 * kPad;
    return fmt::format(
               "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
               "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"Helvetica, Arial, DejaVu Sans, sans-serif\" "
               "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
               width, legend + kPad) +
           body_ + "</svg>\n";
  }

 private:
  static const char* fill_of(Box::Kind kind) {
    switch (kind) {
      case Box::Kind::machine:
        return "#fafafa";
      case Box::Kind::package:
        return "#eef0f3";
      case Box::Kind::numa_node:
        return "#ffffff";
      case Box::Kind::root:
      case Box::Kind::bridge:
        return "#f6f3ea";
      case Box::Kind::gpu:
        return "#dff0d8";
      case Box::Kind::nic:
        return "#dbe7f7";
    }
    return "#ffffff";
  }

  void rectangle(double x, double y, double width, double height, std::string_view fill, std::string_view more) {
    body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" {}/>\n", x, y,
                         width, height, fill, more);
  }

  void text(double x, double y, std::string_view words, std::string_view more = "") {
    body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, more, escape(words));
  }

  void draw_box(const Laid& laid, double x, double y) {
    const Box& box = *laid.box;
    rectangle(x, y, laid.width, laid.height, fill_of(box.kind), "rx=\"4\" stroke=\"#8a8f98\"");
    const double baseline = y + kPad / 2 + kLine - 5;
    text(x + kPad, baseline, box.title, "font-weight=\"bold\" fill=\"#1b1f24\"");
    text(x + kPad + title_width(box), baseline, shortened(box.detail), "fill=\"#57606a\"");
    double chip_x = x + laid.width - kPad / 2;
    // The loop runs from the right edge to the left, so that the marks end at the edge and keep their order.
    for (auto occupant = box.occupants.rbegin(); occupant != box.occupants.rend(); ++occupant) {
      chip_x -= mark_width(outline_.occupants[static_cast<size_t>(*occupant)].mark) + 4;
      draw_chip(*occupant, chip_x, baseline - kChip + 2);
    }
    draw_cells(laid, x, y);
    for (const Laid& inner : laid.inside) draw_box(inner, x + inner.x, y + inner.y);
  }

  /// Shards are round, towers square.
  void draw_chip(int occupant, double x, double y) {
    const Occupant& thread = outline_.occupants[static_cast<size_t>(occupant)];
    const double width = mark_width(thread.mark);
    rectangle(x, y, width, kChip, colour_of(occupant),
              thread.is_tower ? "stroke=\"#1b1f24\"" : "rx=\"7\" stroke=\"#1b1f24\"");
    mark(x + width / 2, y + kChip - 3.5, thread.mark, is_dark(occupant));
  }

  void mark(double x, double y, std::string_view words, bool on_dark, std::string_view more = "") {
    text(x, y, words,
         fmt::format("text-anchor=\"middle\" font-size=\"10\" fill=\"{}\"{}", on_dark ? "#ffffff" : "#1b1f24", more));
  }

  void draw_cells(const Laid& laid, double x, double y) {
    const std::vector<CoreSlot>& slots = laid.box->slots;
    for (size_t i = 0; i < slots.size(); ++i) {
      const double cell_x = x + kPad + static_cast<double>(i % kCellsPerRow) * (laid.cell_width + kCellGap);
      const size_t row = i / kCellsPerRow;
      const double cell_y = y + laid.cells_y + static_cast<double>(row) * (kCellHeight + kCellGap);
      draw_cell(slots[i], cell_x, cell_y, laid.cell_width);
    }
  }

  /// An oversubscribed core has a stripe for each unit that may run there, up to the number of distinguishable stripes.
  void draw_cell(const CoreSlot& slot, double x, double y, double width) {
    const char* frame =
        slot.progress ? "stroke=\"#1b1f24\" stroke-width=\"2\" stroke-dasharray=\"3 2\"" : "stroke=\"#8a8f98\"";
    rectangle(x, y, width, kCellHeight, slot.open ? "#ffffff" : "#d0d4da", frame);
    const size_t stripes = std::min<size_t>(slot.occupants.size(), kColours.size());
    const double stripe = width / static_cast<double>(std::max<size_t>(1, stripes));
    for (size_t i = 0; i < stripes; ++i) {
      rectangle(x + static_cast<double>(i) * stripe, y, stripe, kCellHeight, colour_of(slot.occupants[i]),
                stripes == 1 ? frame : "");
    }
    // A white edge keeps the text readable on several colours.
    const bool dark = stripes == 1 && is_dark(slot.occupants[0]);
    const std::string_view edge = stripes > 1 ? " paint-order=\"stroke\" stroke=\"#ffffff\" stroke-width=\"3\"" : "";
    text(x + width / 2, y + 14, cpu_list(slot),
         fmt::format("text-anchor=\"middle\" fill=\"{}\"{}", dark ? "#ffffff" : "#1b1f24", edge));
    if (stripes > 0) mark(x + width / 2, y + kCellHeight - 6, marks_of(slot, outline_.occupants), dark, edge);
  }

  /// Returns where it ends.
  double draw_legend(double y, double width) {
    double x = kPad;
    const auto entry = [&](const std::string& words, double mark_wide, auto draw_mark) {
      const double entry_width = mark_wide + 8 + text_width(words) + 2 * kPad;
      if (x > kPad && x + entry_width > width) {
        x = kPad;
        y += kLine;
      }
      draw_mark(x, y);
      text(x + mark_wide + 6, y + kChip - 2, words, "fill=\"#1b1f24\"");
      x += entry_width;
      legend_width_ = std::max(legend_width_, x);
    };
    for (size_t i = 0; i < outline_.occupants.size(); ++i) {
      const Occupant& thread = outline_.occupants[i];
      entry(thread.name, mark_width(thread.mark),
            [&](double at_x, double at_y) { draw_chip(static_cast<int>(i), at_x, at_y); });
    }
    // The entry is always present, also if the machine has neither: pictures of two machines then have the same legend.
    entry("progress thread", kChip, [&](double at_x, double at_y) {
      rectangle(at_x, at_y, kChip, kChip, "#ffffff", "stroke=\"#1b1f24\" stroke-width=\"2\" stroke-dasharray=\"3 2\"");
    });
    entry("closed to this process", kChip,
          [&](double at_x, double at_y) { rectangle(at_x, at_y, kChip, kChip, "#d0d4da", "stroke=\"#8a8f98\""); });
    return y + kLine;
  }

  const Outline& outline_;
  std::string body_;
  double legend_width_ = 0;
};

}  // namespace

std::string draw_svg(const Machine& machine, const Placement& placement) {
  const Outline outline = make_outline(machine, placement);
  return Picture(outline).draw();
}

}  // namespace gradrail::topology
