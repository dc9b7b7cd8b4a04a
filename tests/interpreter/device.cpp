// A "cuda" device whose memory is the host's, for a PyTorch that was built without CUDA.
//
// Its operators are those of the CPU, by way of at::native::cpu_fallback; only what makes, shapes or copies tensors is
// written here, because a fallback that copies cannot do that. Memory that nothing has written is NaN in every floating
// type, and writes beside an allocation are counted when it is freed.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

const c10::Device kDevice(c10::DeviceType::CUDA, 0);
const c10::Stream kStream(c10::Stream::DEFAULT, kDevice);

// ---- Memory ---------------------------------------------------------------------------------------------------------

// All bits set: NaN in float16, bfloat16, float32 and float64, and -1 in integers.
constexpr unsigned char kPoison = 0xff;

// Bytes before and after each allocation that belong to nobody. A multiple of any vector load's alignment.
constexpr size_t kZone = 4096;

// Allocations that were freed with something written into a zone.
std::atomic<int64_t> overruns{0};

struct Block {
  unsigned char* start;
  size_t bytes;
};

bool untouched(const unsigned char* zone, size_t bytes) {
  return std::all_of(zone, zone + bytes, [](unsigned char byte) { return byte == kPoison; });
}

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  if (!untouched(block->start, kZone) || !untouched(block->start + kZone + block->bytes, kZone)) {
    ++overruns;
  }
  std::free(block->start);
  delete block;
}

struct PoisonedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* start = nullptr;
    if (posix_memalign(&start, 256, bytes + 2 * kZone) != 0) {
      throw std::bad_alloc();
    }
    std::memset(start, kPoison, bytes + 2 * kZone);
    auto* block = new Block{static_cast<unsigned char*>(start), bytes};
    return {block->start + kZone, block, &release, kDevice};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

PoisonedAllocator allocator;

// ---- What PyTorch's core asks a device ------------------------------------------------------------------------------

// Autograd's engine sets devices and streams, and records and awaits events. All work is done when it returns, so there
// is one stream, and an event is any pointer that is not null.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device getDevice() const override {
    return kDevice;
  }
  c10::Device exchangeDevice(c10::Device) const override {
    return kDevice;
  }
  c10::Stream getStream(c10::Device) const noexcept override {
    return kStream;
  }
  c10::Stream getDefaultStream(c10::Device) const override {
    return kStream;
  }
  c10::Stream getNewStream(c10::Device, int) const override {
    return kStream;
  }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return kStream;
  }
  c10::Stream exchangeStream(c10::Stream) const noexcept override {
    return kStream;
  }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    *event = const_cast<c10::Stream*>(&kStream);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

const c10::impl::DeviceGuardImplRegistrar guard_registrar(c10::DeviceType::CUDA, new Guard());

}  // namespace

namespace at {

// Global code of ATen asks here whether there is CUDA at all, and for its generator.
struct InterpreterHooks final : CUDAHooksInterface {
  explicit InterpreterHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override {
    return true;
  }
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(DeviceIndex) const override {
    return true;
  }
  DeviceIndex current_device() const override {
    return 0;
  }
  DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  DeviceIndex deviceCount() const override {
    return 1;
  }
  int getNumGPUs() const override {
    return 1;
  }
  void deviceSynchronize(DeviceIndex) const override {}
  const Generator& getDefaultGenerator(DeviceIndex) const override {
    return detail::getDefaultCPUGenerator();
  }
};

// The registry looks for a class of this name.
using CUDAHooks = InterpreterHooks;
REGISTER_CUDA_HOOKS(CUDAHooks);

}  // namespace at

// ---- Operators ------------------------------------------------------------------------------------------------------

namespace {

using at::Tensor;
using c10::SymIntArrayRef;

// The same memory as a tensor of the CPU.
Tensor on_host(const Tensor& tensor) {
  if (!tensor.is_cuda()) {
    return tensor;
  }
  const c10::Storage storage = tensor.storage();
  const auto elements = static_cast<int64_t>(storage.nbytes() / tensor.element_size());
  const auto options = at::TensorOptions().dtype(tensor.dtype());
  const auto memory = at::from_blob(storage.mutable_data(), {elements}, [storage](void*) {}, options);
  return memory.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

Tensor empty(SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_generic_symint(size, &allocator, keys, dtype.value_or(at::kFloat), format);
}

Tensor empty_strided(SymIntArrayRef size, SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_strided_symint_generic(size, stride, &allocator, keys, dtype.value_or(at::kFloat));
}

const Tensor& resize(const Tensor& tensor, SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
  const size_t bytes = (impl->numel() + impl->storage_offset()) * tensor.element_size();
  c10::Storage storage = impl->storage();
  if (storage.nbytes() < bytes) {
    auto memory = allocator.allocate(bytes);
    std::memcpy(memory.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(bytes);
  }
  return tensor;
}

Tensor view(const Tensor& tensor, SymIntArrayRef size) {
  return at::native::view(tensor, C10_AS_INTARRAYREF_SLOW(size));
}

Tensor as_strided(const Tensor& tensor, SymIntArrayRef size, SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  const auto start = offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt;
  return at::native::as_strided_tensorimpl(
      tensor, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), start);
}

Tensor reshape_alias(const Tensor& tensor, SymIntArrayRef size, SymIntArrayRef stride) {
  return as_strided(tensor, size, stride, std::nullopt);
}

Tensor& copy_(Tensor& to, const Tensor& from, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) {
    to.resize_(from.sizes());
  }
  return copy_from(from, to, false);
}

at::Scalar item(const Tensor& tensor) {
  return on_host(tensor).item();
}

Tensor& fill(Tensor& tensor, const at::Scalar& value) {
  on_host(tensor).fill_(value);
  return tensor;
}

Tensor& zero(Tensor& tensor) {
  on_host(tensor).zero_();
  return tensor;
}

// Matmuls of half precision with a float32 result: CUDA has these overloads, the CPU has not.
Tensor& product_out(const Tensor& a, const Tensor& b, at::ScalarType, Tensor& out) {
  on_host(out).copy_(at::matmul(on_host(a).to(at::kDouble), on_host(b).to(at::kDouble)));
  return out;
}

Tensor matmul_to(const Tensor& a, const Tensor& b, at::ScalarType dtype) {
  auto size = a.sizes().vec();
  size.back() = b.size(-1);
  auto out = at::empty(size, a.options().dtype(dtype));
  return product_out(a, b, dtype, out);
}

// scaled_dot_product_attention decomposes into matmuls and softmax: 0 is SDPBackend::math. CUDA's other kernels have
// no counterpart on the CPU.
int64_t attention_kernel(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
                         std::optional<double>, bool) {
  return 0;
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

int64_t count_overruns() {
  return overruns;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("resize_", TORCH_FN(resize));
  library.impl("view", TORCH_FN(view));
  library.impl("as_strided", TORCH_FN(as_strided));
  library.impl("_reshape_alias", TORCH_FN(reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("copy_", TORCH_FN(copy_));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("_local_scalar_dense", TORCH_FN(item));
  library.impl("fill_.Scalar", TORCH_FN(fill));
  library.impl("zero_", TORCH_FN(zero));
  library.impl("mm.dtype", TORCH_FN(matmul_to));
  library.impl("mm.dtype_out", TORCH_FN(product_out));
  library.impl("bmm.dtype", TORCH_FN(matmul_to));
  library.impl("bmm.dtype_out", TORCH_FN(product_out));
  library.impl("_fused_sdp_choice", TORCH_FN(attention_kernel));
}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY(interpreter_device, library) {
  library.def("overruns() -> int", TORCH_FN(count_overruns));
}
