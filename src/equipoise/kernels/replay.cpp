// A call of a loss that has been made before, made again without Python.
//
// A recording is what `replay.py` has seen a loss do on a batch: the memory it takes, the kernels it launches and with
// which arguments, forward and backward. Here it is checked that a batch is of the same kind, the memory is taken, the
// kernels are launched, and a node of autograd is left behind that does the same for backward. Whatever is not as it
// was, and second derivatives, is left to Python.

#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::uintptr_t ALIGNMENT = 16;  // what Triton compiles a kernel for

// ---------------------------------------------------------------------------------------------------------------------
// The driver, found where the process has it: nothing of CUDA is needed to build this
// ---------------------------------------------------------------------------------------------------------------------

struct Driver {
  using LaunchKernel = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                               void**, void**);
  using ParameterInfo = int (*)(void*, std::size_t, std::size_t*, std::size_t*);
  using GetContext = int (*)(void**);
  using SetContext = int (*)(void*);

  LaunchKernel launch = nullptr;
  ParameterInfo parameter = nullptr;
  GetContext get_context = nullptr;
  SetContext set_context = nullptr;

  explicit Driver(const std::string& library) {
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
    TORCH_CHECK(handle != nullptr, "cannot open ", library, ": ", dlerror());
    launch = reinterpret_cast<LaunchKernel>(dlsym(handle, "cuLaunchKernel"));
    parameter = reinterpret_cast<ParameterInfo>(dlsym(handle, "cuFuncGetParamInfo"));
    get_context = reinterpret_cast<GetContext>(dlsym(handle, "cuCtxGetCurrent"));
    set_context = reinterpret_cast<SetContext>(dlsym(handle, "cuCtxSetCurrent"));
    TORCH_CHECK(launch && parameter && get_context && set_context, library, " lacks what is needed of it");
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Recordings
// ---------------------------------------------------------------------------------------------------------------------

// A parameter of a kernel: a place in a slot, or, where there is no slot, a number.
struct Argument {
  int slot;
  std::int64_t value;
  std::size_t bytes;
};

struct Kernel {
  std::uintptr_t function;
  unsigned programs;
  unsigned threads;
  unsigned shared_memory;
  std::vector<Argument> arguments;
};

// What a tensor has to be like.
struct Kind {
  at::ScalarType dtype;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  bool aligned;

  explicit Kind(const Tensor& tensor)
      : dtype(tensor.scalar_type()),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        aligned(is_aligned(tensor)) {}

  static bool is_aligned(const Tensor& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % ALIGNMENT == 0;
  }

  bool fits(const Tensor& tensor) const {
    return tensor.scalar_type() == dtype && tensor.sizes() == sizes && tensor.strides() == strides &&
           is_aligned(tensor) == aligned;
  }
};

// Slots: logits, targets, loss, gradient of the loss, gradient of the logits, memory kept for backward, memory of
// forward alone, and then tensors that are the same in every call.
enum Slot { LOGITS, TARGETS, LOSS, GRAD, GRADIENT, KEPT, PASSING, HELD };

// The context of a device, for as long as this lives; for good in a thread that has none.
class Inside {
 public:
  Inside(const Driver& driver, void* context) : driver_(driver) {
    driver_.get_context(&before_);
    if (before_ != context) {
      driver_.set_context(context);
    } else {
      before_ = nullptr;
    }
  }

  ~Inside() {
    if (before_ != nullptr) {
      driver_.set_context(before_);
    }
  }

  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  const Driver& driver_;
  void* before_ = nullptr;
};

struct Recording : torch::CustomClassHolder {
  Kind logits;
  Kind targets;
  at::Device device;
  std::uintptr_t stream;
  at::ScalarType loss_dtype;
  bool at_once;          // forward writes the gradient as well
  std::int64_t kept;     // bytes
  std::int64_t passing;  // bytes
  std::vector<Tensor> held;
  std::vector<std::size_t> checked;  // of those held: must not change between forward and backward
  std::vector<Kernel> forward;
  std::vector<Kernel> backward;
  std::shared_ptr<py::object> in_python;  // backward where a derivative of it is wanted
  std::shared_ptr<Driver> driver;
  void* context = nullptr;  // that of the device, which is the current one when a recording is made

  Recording(Kind logits, Kind targets, at::Device device, std::uintptr_t stream, at::ScalarType loss_dtype, bool at_once,
            std::int64_t kept, std::int64_t passing, std::vector<Tensor> held, std::vector<std::size_t> checked,
            std::vector<Kernel> forward, std::vector<Kernel> backward, py::object in_python,
            std::shared_ptr<Driver> driver)
      : logits(std::move(logits)),
        targets(std::move(targets)),
        device(device),
        stream(stream),
        loss_dtype(loss_dtype),
        at_once(at_once),
        kept(kept),
        passing(passing),
        held(std::move(held)),
        checked(std::move(checked)),
        forward(std::move(forward)),
        backward(std::move(backward)),
        in_python(new py::object(std::move(in_python)), release),
        driver(std::move(driver)) {
    this->driver->get_context(&context);
  }

  // The last node that needs a recording may go away in a thread of autograd, which does not hold Python's lock.
  static void release(py::object* object) {
    py::gil_scoped_acquire gil;
    delete object;
  }

  bool fits(const Tensor& z, const Tensor& t) const {
    return logits.fits(z) && targets.fits(t) && z.device() == device && t.device() == device;
  }

  void launch(const std::vector<Kernel>& kernels, const std::vector<std::uintptr_t>& slots) const {
    const Inside inside(*driver, context);
    std::vector<std::int64_t> values;
    std::vector<void*> places;
    for (const Kernel& kernel : kernels) {
      values.resize(kernel.arguments.size());
      places.resize(kernel.arguments.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const Argument& argument = kernel.arguments[i];
        values[i] = argument.value + (argument.slot < 0 ? 0 : static_cast<std::int64_t>(slots[argument.slot]));
        places[i] = &values[i];
      }
      const int error =
          driver->launch(reinterpret_cast<void*>(kernel.function), kernel.programs, 1, 1, kernel.threads, 1, 1,
                         kernel.shared_memory, reinterpret_cast<void*>(stream), places.data(), nullptr);
      TORCH_CHECK(error == 0, "CUDA error ", error, " at the launch of a kernel of equipoise");
    }
  }
};

// Whether a tensor is memory of its own and nothing else; one that is batched stands for several at once.
bool is_ordinary(const Tensor& tensor) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet strange({DispatchKey::Python, DispatchKey::Batched, DispatchKey::FuncTorchBatched,
                                         DispatchKey::FuncTorchGradWrapper, DispatchKey::Functionalize,
                                         DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor});
  return !tensor.key_set().has_any(strange) && !tensor._fw_grad(0).defined();
}

std::uintptr_t address(const Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) : 0;
}

std::vector<std::uintptr_t> filled(const Recording& recording) {
  std::vector<std::uintptr_t> slots(HELD + recording.held.size(), 0);
  for (std::size_t i = 0; i < recording.held.size(); ++i) {
    slots[HELD + i] = address(recording.held[i]);
  }
  return slots;
}

Tensor gradient_of(const Tensor& logits, const Recording& recording) {
  return at::empty_strided(recording.logits.sizes, recording.logits.strides, logits.options());
}

Tensor memory(std::int64_t bytes, at::Device device) {
  return bytes ? at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device)) : Tensor();
}

struct ReplayedLoss : torch::autograd::Function<ReplayedLoss> {
  static Tensor forward(AutogradContext* ctx, const Tensor& logits, const Tensor& targets,
                        const c10::intrusive_ptr<Recording>& recording) {
    Tensor loss = at::empty({}, at::TensorOptions().dtype(recording->loss_dtype).device(recording->device));
    const Tensor kept = memory(recording->kept, recording->device);
    const Tensor passing = memory(recording->passing, recording->device);
    std::vector<std::uintptr_t> slots = filled(*recording);
    slots[LOGITS] = address(logits);
    slots[TARGETS] = address(targets);
    slots[LOSS] = address(loss);
    slots[KEPT] = address(kept);
    slots[PASSING] = address(passing);
    if (recording->at_once) {
      const Tensor gradient = gradient_of(logits, *recording);
      slots[GRADIENT] = address(gradient);
      ctx->saved_data["gradient"] = gradient;
      ctx->saved_data["kept"] = kept;
    }
    recording->launch(recording->forward, slots);

    variable_list saved{logits, targets, kept};
    for (const std::size_t i : recording->checked) {
      saved.push_back(recording->held[i]);
    }
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["recording"] = c10::IValue::make_capsule(recording);
    return loss;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto recording = c10::static_intrusive_pointer_cast<Recording>(ctx->saved_data["recording"].toCapsule());
    const Tensor& grad = grads[0];
    const auto written = ctx->saved_data.find("gradient");
    const bool usual = !at::GradMode::is_enabled() && is_ordinary(grad) && grad.dim() == 0 &&
                       grad.scalar_type() == recording->loss_dtype && grad.device() == recording->device &&
                       Kind::is_aligned(grad) && recording->at_once == (written != ctx->saved_data.end());
    std::vector<std::uintptr_t> slots = filled(*recording);
    Tensor gradient, kept;
    if (usual && recording->at_once) {  // whoever takes it may write into it, so it is given away once
      gradient = written->second.toTensor();
      kept = ctx->saved_data["kept"].toTensor();
      ctx->saved_data.erase(written);
    } else {
      const variable_list saved = ctx->get_saved_variables();  // raises where one has changed
      const Tensor &logits = saved[0], &targets = saved[1];
      kept = saved[2];
      if (!usual) {
        py::gil_scoped_acquire gil;
        return {py::cast<Tensor>((*recording->in_python)(grad, logits, targets, kept)), Tensor(), Tensor()};
      }
      gradient = gradient_of(logits, *recording);
      slots[LOGITS] = address(logits);
      slots[TARGETS] = address(targets);
    }
    slots[GRAD] = address(grad);
    slots[GRADIENT] = address(gradient);
    slots[KEPT] = address(kept);
    recording->launch(recording->backward, slots);
    return {gradient, Tensor(), Tensor()};
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// What Python sees
// ---------------------------------------------------------------------------------------------------------------------

// Hooks may hand back what was kept in other strides or as it was before, and expect the same of every call.
bool is_kept_by_hooks() { return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty(); }

bool is_watched_by_torch() {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet modes(
      {DispatchKey::Python, DispatchKey::FuncTorchDynamicLayerFrontMode, DispatchKey::Functionalize});
  return c10::impl::tls_local_dispatch_key_set().included_.has_any(modes);
}

class Replays {
 public:
  Replays(const std::string& library, py::object current_stream, py::object is_capturing)
      : driver_(std::make_shared<Driver>(library)),
        current_stream_(std::move(current_stream)),
        is_capturing_(std::move(is_capturing)) {}

  // The loss of a batch, or None where nothing alike is on record.
  py::object call(const Tensor& logits, const Tensor& targets) const {
    if (!at::GradMode::is_enabled() || !logits.requires_grad() || targets.requires_grad() || is_watched_by_torch() ||
        is_kept_by_hooks() || !is_ordinary(logits) || !is_ordinary(targets)) {
      return py::none();
    }
    if (recordings_.empty() || py::cast<bool>(is_capturing_())) {
      return py::none();
    }
    const std::uintptr_t current = stream(logits.device());
    for (const auto& recording : recordings_) {
      if (recording->stream == current && recording->fits(logits, targets)) {
        return py::cast(ReplayedLoss::apply(logits, targets, recording));
      }
    }
    return py::none();
  }

  // Puts a call on record; false where a kernel does not take these arguments.
  bool add(const Tensor& logits, const Tensor& targets, at::ScalarType loss_dtype, bool at_once, std::int64_t kept,
           std::int64_t passing, std::vector<Tensor> held, std::vector<std::size_t> checked,
           std::vector<Kernel> forward, std::vector<Kernel> backward, py::object in_python) {
    for (const auto* kernels : {&forward, &backward}) {
      for (const Kernel& kernel : *kernels) {
        if (!takes(kernel)) {
          return false;
        }
      }
    }
    recordings_.push_back(c10::make_intrusive<Recording>(
        Kind(logits), Kind(targets), logits.device(), stream(logits.device()), loss_dtype, at_once, kept, passing,
        std::move(held), std::move(checked), std::move(forward), std::move(backward), std::move(in_python), driver_));
    return true;
  }

  std::size_t size() const { return recordings_.size(); }

 private:
  std::uintptr_t stream(at::Device device) const {
    return py::cast<std::uintptr_t>(current_stream_(static_cast<int>(device.index())));
  }

  // Whether the arguments are those of the compiled kernel, by number and size.
  bool takes(const Kernel& kernel) const {
    void* function = reinterpret_cast<void*>(kernel.function);
    std::size_t offset = 0, bytes = 0;
    for (std::size_t i = 0; i < kernel.arguments.size(); ++i) {
      if (driver_->parameter(function, i, &offset, &bytes) != 0 || bytes != kernel.arguments[i].bytes) {
        return false;
      }
    }
    return driver_->parameter(function, kernel.arguments.size(), &offset, &bytes) != 0;
  }

  std::shared_ptr<Driver> driver_;
  py::object current_stream_;
  py::object is_capturing_;
  std::vector<c10::intrusive_ptr<Recording>> recordings_;
};

}  // namespace

PYBIND11_MODULE(equipoise_replay, module) {
  const py::module_local apart;  // from these of another copy, built or loaded in the same process
  py::class_<Argument>(module, "Argument", apart).def(py::init<int, std::int64_t, std::size_t>());
  py::class_<Kernel>(module, "Kernel", apart)
      .def(py::init<std::uintptr_t, unsigned, unsigned, unsigned, std::vector<Argument>>());
  py::class_<Replays>(module, "Replays", apart)
      .def(py::init<std::string, py::object, py::object>())
      .def("__call__", &Replays::call)
      .def("__len__", &Replays::size)
      .def("add", &Replays::add);
}
