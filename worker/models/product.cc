#include "worker/models/product.h"

#include <dlfcn.h>

#include <array>
#include <string>
#include <utility>

#include "base/check.h"
#include "dnnl.hpp"
#include "fmt/format.h"

namespace gradrail::worker {
namespace {

using dnnl::memory;

memory::desc matrix(size_t rows, size_t columns, bool transposed) {
  return {{static_cast<memory::dim>(rows), static_cast<memory::dim>(columns)},
          memory::data_type::f32,
          // The logical shape stays: only the order in memory differs.
          transposed ? memory::format_tag::ba : memory::format_tag::ab};
}

/// The OpenMP that oneDNN brought into the process, whichever it is: linking one ourselves could load a second. A
/// oneDNN built on something else leaves both empty.
struct OpenMp {
  int (*get_max_threads)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  void (*set_num_threads)(int) = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
};

void point(memory& operand, const float* data) {
  // oneDNN takes one pointer type for what it reads and what it writes.
  GRADRAIL_CHECK(dnnl_memory_set_data_handle(operand.get(), const_cast<float*>(data)) == dnnl_success);
}

}  // namespace

void limit_product_threads(int threads) {
  static const OpenMp open_mp;
  if (open_mp.set_num_threads == nullptr || open_mp.get_max_threads == nullptr) return;
  // A read per step is cheap; the count is set only if another model of this thread changed it.
  if (open_mp.get_max_threads() != threads) open_mp.set_num_threads(threads);
}

struct Product::Impl {
  Impl(const dnnl::engine& engine, const Shape& shape)
      : stream(engine),
        a(handle(engine, matrix(shape.m, shape.k, shape.transposed_a))),
        b(handle(engine, matrix(shape.k, shape.n, shape.transposed_b))),
        c(handle(engine, matrix(shape.m, shape.n, false))),
        bias(handle(engine, matrix(1, shape.n, false))) {
    dnnl::primitive_attr attributes;
    // The primitive has its own scratch memory, allocated here once instead of at each execution.
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const auto description = shape.bias ? dnnl::matmul::desc(a.get_desc(), b.get_desc(), bias.get_desc(), c.get_desc())
                                        : dnnl::matmul::desc(a.get_desc(), b.get_desc(), c.get_desc());
    const dnnl::matmul::primitive_desc chosen(description, attributes, engine);
    primitive = dnnl::matmul(chosen);
    scratch = memory(chosen.scratchpad_desc(), engine);
    // The bias is last, so that a count of 4 leaves it out.
    arguments = {{{DNNL_ARG_SRC, a.get()},
                  {DNNL_ARG_WEIGHTS, b.get()},
                  {DNNL_ARG_DST, c.get()},
                  {DNNL_ARG_SCRATCHPAD, scratch.get()},
                  {DNNL_ARG_BIAS, bias.get()}}};
    argument_count = shape.bias ? 5 : 4;
  }

  static memory handle(const dnnl::engine& engine, const memory::desc& description) {
    // The description has no memory: run() sets the address of each operand.
    return {description, engine, DNNL_MEMORY_NONE};
  }

  dnnl::stream stream;
  dnnl::matmul primitive;
  memory a, b, c, bias, scratch;
  std::array<dnnl_exec_arg_t, 5> arguments{};
  int argument_count = 0;
};

Product::Product(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Product::Product(Product&&) noexcept = default;
Product& Product::operator=(Product&&) noexcept = default;
Product::~Product() = default;

absl::StatusOr<Product> Product::create(Shape shape) {
  try {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    return Product(std::make_unique<Impl>(engine, shape));
  } catch (const dnnl::error& error) {
    return absl::InternalError(fmt::format("oneDNN: product {}x{}x{}: {}", shape.m, shape.k, shape.n, error.what()));
  }
}

void Product::run(const float* a, const float* b, float* c, const float* bias) {
  Impl& impl = *impl_;
  point(impl.a, a);
  point(impl.b, b);
  point(impl.c, c);
  if (impl.argument_count == 5) point(impl.bias, bias);
  // The C call: the C++ one builds a map and a vector at each execution, and throws. Shapes were accepted at creation.
  GRADRAIL_CHECK(dnnl_primitive_execute(impl.primitive.get(), impl.stream.get(), impl.argument_count,
                                        impl.arguments.data()) == dnnl_success);
}

}  // namespace gradrail::worker
