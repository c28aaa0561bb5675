#include "tools/gradrail/npz.h"

#include <zip.h>

#include <cerrno>
#include <cstdint>
#include <deque>
#include <memory>
#include <tuple>

#include "base/little_endian.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace gradrail::tools {
namespace {

// An archive that is not closed must be discarded: libzip then leaves the old file as it is.
struct Discard {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};
using Archive = std::unique_ptr<zip_t, Discard>;

/// As Python writes a tuple.
std::string tuple(const std::vector<int64_t>& shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

/// Everything before the numbers, which then begin on a line of the cache.
std::string npy_header(const NamedArray& array) {
  // The format asks for a multiple of 64; magic, version and length have 10 bytes.
  constexpr size_t kAlignment = 64, kMagicBytes = 10;
  std::string fields = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}",
                                   array.type == NamedArray::Type::float32 ? "<f4" : "<i8", tuple(array.shape));
  // Spaces before the line end fill the block: one byte for the line end, ten for the start.
  fields.resize((kMagicBytes + fields.size() + 1 + kAlignment - 1) / kAlignment * kAlignment - kMagicBytes - 1, ' ');
  fields += '\n';
  // Format 1.0 of NumPy: magic, version, the length in 16 bits, then a Python dictionary that ends with a line end.
  std::string header("\x93NUMPY\x01\x00", 8);
  append_le(header, static_cast<uint16_t>(fields.size()));
  return header + fields;
}

absl::Status failed(const std::string& path, const std::string& what, zip_error_t* error) {
  const std::string text = fmt::format("{}: {}: {}", path, what, zip_error_strerror(error));
  if (zip_error_system_type(error) != ZIP_ET_SYS) return absl::UnknownError(text);
  const int number = zip_error_code_system(error);
  // As in ps::ReplacementFile: a limit is a lack of room.
  if (number == EFBIG) return absl::ResourceExhaustedError(text + " (`ulimit -f`?)");
  return absl::Status(absl::ErrnoToStatusCode(number), text);
}

/// libzip reads header and numbers when the archive is closed: both must live until then.
absl::Status add(zip_t* archive, const std::string& path, const NamedArray& array, const std::string& header) {
  const auto fragment = [](const auto& bytes) {
    // libzip's type has no const; it only reads.
    return zip_buffer_fragment_t{
        reinterpret_cast<zip_uint8_t*>(const_cast<void*>(static_cast<const void*>(bytes.data()))), bytes.size()};
  };
  const zip_buffer_fragment_t fragments[] = {fragment(header), fragment(array.bytes)};
  // The last 0: libzip does not free the memory, which belongs to the caller.
  zip_source_t* source = zip_source_buffer_fragment(archive, fragments, std::size(fragments), 0);
  if (source == nullptr) return failed(path, array.name, zip_get_error(archive));
  const zip_int64_t index = zip_file_add(archive, (array.name + ".npy").c_str(), source, ZIP_FL_ENC_UTF_8);
  if (index < 0) {
    // Only a successful zip_file_add() takes the source over.
    zip_source_free(source);
    return failed(path, array.name, zip_get_error(archive));
  }
  // Stored: weights are almost random, so compression costs minutes and saves little.
  zip_set_file_compression(archive, static_cast<zip_uint64_t>(index), ZIP_CM_STORE, 0);
  return absl::OkStatus();
}

}  // namespace

absl::Status check_npz() { return absl::OkStatus(); }

absl::Status write_npz(const std::string& path, absl::Span<const NamedArray> arrays) {
  int code = 0;
  Archive archive(zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &code));
  if (archive == nullptr) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    const absl::Status status = failed(path, "open", &error);
    zip_error_fini(&error);
    return status;
  }
  // A deque keeps the address of each header while others are added.
  std::deque<std::string> headers;
  for (const NamedArray& array : arrays) {
    headers.push_back(npy_header(array));
    GRADRAIL_RETURN_IF_ERROR(add(archive.get(), path, array, headers.back()));
  }
  if (zip_close(archive.get()) != 0) return failed(path, "write", zip_get_error(archive.get()));
  // zip_close() has freed the archive; after a failure it has not, and the deleter discards it.
  std::ignore = archive.release();
  return absl::OkStatus();
}

}  // namespace gradrail::tools
