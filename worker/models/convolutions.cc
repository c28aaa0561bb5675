#include "worker/models/convolutions.h"

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "dnnl.hpp"
#include "fmt/format.h"
#include "worker/models/elementwise.h"

namespace gradrail::worker {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::prop_kind;
using Tag = memory::format_tag;

constexpr memory::dim kKernel = 5;
constexpr memory::dim kPool = 2;
const memory::dims kOnes = {1, 1};
const memory::dims kNothing = {0, 0};
const memory::dims kMargin = {kKernel / 2, kKernel / 2};  // SAME: the output has the size of the input
const memory::dims kPools = {kPool, kPool};

memory::desc layout(const memory::dims& dims, Tag tag) { return {dims, memory::data_type::f32, tag}; }

float* values(const memory& m) { return static_cast<float*>(m.get_data_handle()); }
size_t element_count(const memory& m) { return m.get_desc().get_size() / sizeof(float); }

void point(memory& operand, const float* data) {
  // oneDNN takes one pointer type for what it reads and what it writes.
  GRADRAIL_CHECK(dnnl_memory_set_data_handle(operand.get(), const_cast<float*>(data)) == dnnl_success);
}

/// A oneDNN primitive with all its operands.
class Operation {
 public:
  Operation(dnnl::primitive primitive, std::initializer_list<std::pair<int, memory>> operands)
      : primitive_(std::move(primitive)) {
    for (const auto& [name, operand] : operands) add(name, operand);
  }

  void add(int name, memory operand) {
    arguments_.push_back({name, operand.get()});
    operands_.push_back(std::move(operand));
  }

  void run(const dnnl::stream& stream) const {
    // The C call: the C++ one builds a map and a vector at each execution, and throws. Shapes were accepted before.
    GRADRAIL_CHECK(dnnl_primitive_execute(primitive_.get(), stream.get(), static_cast<int>(arguments_.size()),
                                          arguments_.data()) == dnnl_success);
  }

 private:
  dnnl::primitive primitive_;
  std::vector<memory> operands_;  // owns the operands
  std::vector<dnnl_exec_arg_t> arguments_;
};
using Operations = std::vector<Operation>;

/// Makes memory and operations on one engine.
class Workshop {
 public:
  memory room(const memory::desc& description) const { return {description, engine_}; }
  /// The caller's memory: each run sets its address.
  memory handle(const memory::dims& dims, Tag tag) const { return {layout(dims, tag), engine_, DNNL_MEMORY_NONE}; }

  template <typename Primitive>
  Operation operation(const typename Primitive::primitive_desc& chosen,
                      std::initializer_list<std::pair<int, memory>> operands) const {
    Operation made(Primitive(chosen), operands);
    // The primitive has its own scratch memory, allocated here once instead of at each execution.
    made.add(DNNL_ARG_SCRATCHPAD, room(chosen.scratchpad_desc()));
    return made;
  }

  void copy(const memory& from, const memory& to, Operations& operations) const {
    const dnnl::reorder::primitive_desc chosen(from, to, attributes());
    operations.push_back(operation<dnnl::reorder>(chosen, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}));
  }

  /// `from` in the layout that a primitive prefers: itself, or a copy that `operations` makes.
  memory as(const memory& from, const memory::desc& wanted, Operations& operations) const {
    if (from.get_desc() == wanted) return from;
    memory to = room(wanted);
    copy(from, to, operations);
    return to;
  }

  static dnnl::primitive_attr attributes() {
    dnnl::primitive_attr result;
    result.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return result;
  }

  const dnnl::engine& engine() const { return engine_; }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
};

struct StageShape {
  memory::dim batch, side, inputs, outputs;
  memory::dims source() const { return {batch, inputs, side, side}; }
  memory::dims kernel() const { return {outputs, inputs, kKernel, kKernel}; }
  memory::dims bias() const { return {outputs}; }
  memory::dims result() const { return {batch, outputs, side, side}; }
  memory::dims pooled() const { return {batch, outputs, side / kPool, side / kPool}; }
};

/// Whether all numbers are finite. The loop has no branch, so that the compiler vectorises it.
bool is_finite(const memory& numbers) {
  constexpr uint32_t kExponent = 0x7f800000;  // NaN and infinity have all of its bits
  const float* const each = values(numbers);
  const size_t count = element_count(numbers);  // a call of oneDNN
  uint32_t others = 0;
  for (size_t i = 0; i < count; ++i)
    others |= static_cast<uint32_t>((std::bit_cast<uint32_t>(each[i]) & kExponent) == kExponent);
  return others == 0;
}

/// Convolution, ReLU, pooling, and the way back.
class Stage {
 public:
  /// `source_gradient` is the destination of the gradient; null: none is computed.
  Stage(const Workshop& workshop, const StageShape& shape, const memory& source, const memory* source_gradient)
      : weights(workshop.handle(shape.kernel(), Tag::hwio)),
        bias(workshop.handle(shape.bias(), Tag::x)),
        weights_gradient(workshop.handle(shape.kernel(), Tag::hwio)),
        bias_gradient(workshop.handle(shape.bias(), Tag::x)) {
    const auto convolution = make_convolution(workshop, shape, source);
    const auto pool = make_pool(workshop, shape);
    make_pool_back(workshop, shape, pool);
    make_to_weights(workshop, shape, source, convolution);
    if (source_gradient != nullptr) make_to_source(workshop, shape, *source_gradient, convolution);
  }

  void run_forward(const dnnl::stream& stream) const { run(forward_, stream); }
  bool has_finite_parameters() const { return is_finite(weights) && is_finite(bias); }

  /// Computes the gradients of weights and bias from `pooled_gradient`.
  void run_to_weights(const dnnl::stream& stream) const {
    // Whatever is largest of four and not above zero is zero: ReLU's way back needs to look at pooled values alone.
    relu_backward(values(pooled), values(pooled_gradient), element_count(pooled));
    run(to_weights_, stream);
  }
  void run_to_source(const dnnl::stream& stream) const { run(to_source_, stream); }

  // The caller's.
  memory weights, bias, weights_gradient, bias_gradient;
  // Ours.
  memory pooled, pooled_gradient;

 private:
  using Forward = dnnl::convolution_forward::primitive_desc;

  static void run(const Operations& operations, const dnnl::stream& stream) {
    for (const Operation& operation : operations) operation.run(stream);
  }

  Forward make_convolution(const Workshop& workshop, const StageShape& shape, const memory& source) {
    dnnl::primitive_attr attributes = Workshop::attributes();
    // ReLU runs inside the convolution, so that the activation is written once.
    dnnl::post_ops relu;
    relu.append_eltwise(1.0f, algorithm::eltwise_relu, 0.0f, 0.0f);
    attributes.set_post_ops(relu);
    // Tag::any leaves the layout to oneDNN; as() adds a copy where the caller's layout differs.
    Forward chosen({prop_kind::forward_training, algorithm::convolution_direct, layout(shape.source(), Tag::any),
                    layout(shape.kernel(), Tag::any), layout(shape.bias(), Tag::x), layout(shape.result(), Tag::any),
                    kOnes, kMargin, kMargin},
                   attributes, workshop.engine());
    activation_ = workshop.room(chosen.dst_desc());
    const memory read = workshop.as(source, chosen.src_desc(), forward_);
    const memory kernel = workshop.as(weights, chosen.weights_desc(), forward_);
    forward_.push_back(workshop.operation<dnnl::convolution_forward>(
        chosen,
        {{DNNL_ARG_SRC, read}, {DNNL_ARG_WEIGHTS, kernel}, {DNNL_ARG_BIAS, bias}, {DNNL_ARG_DST, activation_}}));
    return chosen;
  }

  dnnl::pooling_forward::primitive_desc make_pool(const Workshop& workshop, const StageShape& shape) {
    dnnl::pooling_forward::primitive_desc chosen(
        {prop_kind::forward_training, algorithm::pooling_max, activation_.get_desc(), layout(shape.pooled(), Tag::any),
         kPools, kPools, kNothing, kNothing},
        Workshop::attributes(), workshop.engine());
    pooled = workshop.room(chosen.dst_desc());
    pooled_gradient = workshop.room(chosen.dst_desc());
    // The workspace records the position of each maximum. The backward pass sends each gradient there.
    winners_ = workshop.room(chosen.workspace_desc());
    forward_.push_back(workshop.operation<dnnl::pooling_forward>(
        chosen, {{DNNL_ARG_SRC, activation_}, {DNNL_ARG_DST, pooled}, {DNNL_ARG_WORKSPACE, winners_}}));
    return chosen;
  }

  void make_pool_back(const Workshop& workshop, const StageShape&,
                      const dnnl::pooling_forward::primitive_desc& forward) {
    const dnnl::pooling_backward::primitive_desc chosen(
        {algorithm::pooling_max, activation_.get_desc(), pooled.get_desc(), kPools, kPools, kNothing, kNothing},
        Workshop::attributes(), workshop.engine(), forward);
    // ReLU is absent here: run_to_weights() has applied it to the pooled gradient.
    activation_gradient_ = workshop.room(activation_.get_desc());
    to_weights_.push_back(
        workshop.operation<dnnl::pooling_backward>(chosen, {{DNNL_ARG_DIFF_DST, pooled_gradient},
                                                            {DNNL_ARG_WORKSPACE, winners_},
                                                            {DNNL_ARG_DIFF_SRC, activation_gradient_}}));
  }

  void make_to_weights(const Workshop& workshop, const StageShape& shape, const memory& source,
                       const Forward& forward) {
    const dnnl::convolution_backward_weights::primitive_desc chosen(
        {algorithm::convolution_direct, layout(shape.source(), Tag::any), layout(shape.kernel(), Tag::any),
         layout(shape.bias(), Tag::x), layout(shape.result(), Tag::any), kOnes, kMargin, kMargin},
        Workshop::attributes(), workshop.engine(), forward);
    const memory read = workshop.as(source, chosen.src_desc(), to_weights_);
    const memory gradient = workshop.as(activation_gradient_, chosen.diff_dst_desc(), to_weights_);
    // oneDNN writes into the caller's gradient where it chose the same layout; else a copy follows.
    const bool in_place = chosen.diff_weights_desc() == weights_gradient.get_desc();
    const memory kernel = in_place ? weights_gradient : workshop.room(chosen.diff_weights_desc());
    to_weights_.push_back(
        workshop.operation<dnnl::convolution_backward_weights>(chosen, {{DNNL_ARG_SRC, read},
                                                                        {DNNL_ARG_DIFF_DST, gradient},
                                                                        {DNNL_ARG_DIFF_WEIGHTS, kernel},
                                                                        {DNNL_ARG_DIFF_BIAS, bias_gradient}}));
    if (!in_place) workshop.copy(kernel, weights_gradient, to_weights_);
  }

  void make_to_source(const Workshop& workshop, const StageShape& shape, const memory& source_gradient,
                      const Forward& forward) {
    const dnnl::convolution_backward_data::primitive_desc chosen(
        {algorithm::convolution_direct, layout(shape.source(), Tag::any), layout(shape.kernel(), Tag::any),
         layout(shape.result(), Tag::any), kOnes, kMargin, kMargin},
        Workshop::attributes(), workshop.engine(), forward);
    const memory gradient = workshop.as(activation_gradient_, chosen.diff_dst_desc(), to_source_);
    // A second copy of the weights, made during the backward pass, since its layout may differ from the forward one.
    const memory kernel = workshop.as(weights, chosen.weights_desc(), to_source_);
    const bool in_place = chosen.diff_src_desc() == source_gradient.get_desc();
    const memory result = in_place ? source_gradient : workshop.room(chosen.diff_src_desc());
    to_source_.push_back(workshop.operation<dnnl::convolution_backward_data>(
        chosen, {{DNNL_ARG_DIFF_DST, gradient}, {DNNL_ARG_WEIGHTS, kernel}, {DNNL_ARG_DIFF_SRC, result}}));
    if (!in_place) workshop.copy(result, source_gradient, to_source_);
  }

  memory activation_, winners_, activation_gradient_;
  Operations forward_, to_weights_, to_source_;
};

}  // namespace

struct Convolutions::Impl {
  explicit Impl(const Shape& s)
      : batch(static_cast<memory::dim>(s.batch)),
        side(static_cast<memory::dim>(s.side)),
        first_outputs(static_cast<memory::dim>(s.first)),
        second_outputs(static_cast<memory::dim>(s.second)),
        stream(workshop.engine()),
        images(workshop.handle({batch, 1, side, side}, Tag::nhwc)),
        features(workshop.handle({batch, second_outputs, side / 4, side / 4}, Tag::nhwc)),
        features_gradient(workshop.handle({batch, second_outputs, side / 4, side / 4}, Tag::nhwc)),
        // Nothing needs the gradient of the images.
        first(workshop, {batch, side, 1, first_outputs}, images, nullptr),
        second(workshop, {batch, side / 2, first_outputs, second_outputs}, first.pooled, &first.pooled_gradient) {
    workshop.copy(second.pooled, features, leave);
    workshop.copy(features_gradient, second.pooled_gradient, enter);
  }

  // The order of these members matters: memory needs the engine, and `second` reads the result of `first`.
  const memory::dim batch, side, first_outputs, second_outputs;
  const Workshop workshop;
  dnnl::stream stream;
  memory images, features, features_gradient;
  Stage first, second;
  Operations leave;  // conversions from our layout to the caller's
  Operations enter;  // conversions from the caller's layout to ours
};

Convolutions::Convolutions(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Convolutions::Convolutions(Convolutions&&) noexcept = default;
Convolutions& Convolutions::operator=(Convolutions&&) noexcept = default;
Convolutions::~Convolutions() = default;

absl::StatusOr<Convolutions> Convolutions::create(Shape shape) {
  GRADRAIL_CHECK(shape.batch > 0 && shape.side > 0 && shape.side % 4 == 0 && shape.first > 0 && shape.second > 0);
  try {
    return Convolutions(std::make_unique<Impl>(shape));
  } catch (const dnnl::error& error) {
    return absl::InternalError(fmt::format("oneDNN: convolutions of {0}x{1}x{1}, {2} and {3} channels: {4}",
                                           shape.batch, shape.side, shape.first, shape.second, error.what()));
  }
}

void Convolutions::forward(const float* images, Weights first, Weights second, float* features) {
  Impl& impl = *impl_;
  // The backward pass reads through these same pointers: forward() alone sets those of images and weights.
  point(impl.images, images);
  point(impl.first.weights, first.weights);
  point(impl.first.bias, first.bias);
  point(impl.second.weights, second.weights);
  point(impl.second.bias, second.bias);
  point(impl.features, features);
  impl.first.run_forward(impl.stream);
  impl.second.run_forward(impl.stream);
  // copy() made exactly one operation.
  impl.leave[0].run(impl.stream);
  // ReLU and pooling of oneDNN ignore NaN, and a diverged model must show in the cost.
  if (!impl.first.has_finite_parameters() || !impl.second.has_finite_parameters())
    std::fill_n(features, element_count(impl.features), std::numeric_limits<float>::quiet_NaN());
}

void Convolutions::backward_second(const float* features_gradient, Gradient second) {
  Impl& impl = *impl_;
  point(impl.features_gradient, features_gradient);
  point(impl.second.weights_gradient, second.weights);
  point(impl.second.bias_gradient, second.bias);
  impl.enter[0].run(impl.stream);
  impl.second.run_to_weights(impl.stream);
  impl.second.run_to_source(impl.stream);
}

void Convolutions::backward_first(Gradient first) {
  Impl& impl = *impl_;
  point(impl.first.weights_gradient, first.weights);
  point(impl.first.bias_gradient, first.bias);
  impl.first.run_to_weights(impl.stream);
}

}  // namespace gradrail::worker
