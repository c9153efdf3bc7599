// The backend of the CPU, of which there is one for each instruction set (`build.rs`): its functions that others call.
// Each calls that of the variant that was chosen.

#include <stdlib.h>
#include <string.h>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "variants-list.h"

#define CONCATENATED(a, b, c) a##b##c
#define NAME_OF(variant, function) CONCATENATED(mithril_, variant, _##function)

#ifdef HAS_SEVERAL_VARIANTS

// The functions, as `function(result, parameters, arguments)`.
#define FUNCTIONS(F)                                                                                                  \
    F(ggml_cpu_init, void, (void), ())                                                                                \
    F(ggml_backend_cpu_reg, ggml_backend_reg_t, (void), ())                                                           \
    F(ggml_get_type_traits_cpu, const struct ggml_type_traits_cpu *, (enum ggml_type type), (type))                   \
    F(ggml_threadpool_new, struct ggml_threadpool *, (struct ggml_threadpool_params * params), (params))              \
    F(ggml_threadpool_free, void, (struct ggml_threadpool * pool), (pool))                                            \
    F(ggml_graph_plan, struct ggml_cplan,                                                                             \
      (const struct ggml_cgraph *graph, int threads, struct ggml_threadpool *pool), (graph, threads, pool))           \
    F(ggml_graph_compute, enum ggml_status, (struct ggml_cgraph * graph, struct ggml_cplan * plan), (graph, plan))

struct variant {
    const char *name;
#define F(name, result, parameters, arguments) result(*name) parameters;
    FUNCTIONS(F)
#undef F
};

#define X(variant)                                                                                                    \
    extern __typeof__(ggml_cpu_init) NAME_OF(variant, ggml_cpu_init);                                                 \
    extern __typeof__(ggml_backend_cpu_reg) NAME_OF(variant, ggml_backend_cpu_reg);                                   \
    extern __typeof__(ggml_get_type_traits_cpu) NAME_OF(variant, ggml_get_type_traits_cpu);                           \
    extern __typeof__(ggml_threadpool_new) NAME_OF(variant, ggml_threadpool_new);                                     \
    extern __typeof__(ggml_threadpool_free) NAME_OF(variant, ggml_threadpool_free);                                   \
    extern __typeof__(ggml_graph_plan) NAME_OF(variant, ggml_graph_plan);                                             \
    extern __typeof__(ggml_graph_compute) NAME_OF(variant, ggml_graph_compute);
VARIANTS
#undef X

static const struct variant variants[] = {
#define X(variant)                                                                                                    \
    {#variant,                                                                                                        \
     NAME_OF(variant, ggml_cpu_init),                                                                                 \
     NAME_OF(variant, ggml_backend_cpu_reg),                                                                          \
     NAME_OF(variant, ggml_get_type_traits_cpu),                                                                      \
     NAME_OF(variant, ggml_threadpool_new),                                                                           \
     NAME_OF(variant, ggml_threadpool_free),                                                                          \
     NAME_OF(variant, ggml_graph_plan),                                                                               \
     NAME_OF(variant, ggml_graph_compute)},
    VARIANTS
#undef X
};

static const struct variant *chosen;

// What is used if nothing was chosen, as in programs in C that are linked with this: by the environment, or else the first,
// which every processor executes.
static const struct variant *current(void) {
    if (!chosen) {
        const char *name = getenv("MITHRIL_GGML_CPU");
        chosen = variants;
        for (size_t i = 0; name && i < sizeof variants / sizeof *variants; i++) {
            if (!strcmp(variants[i].name, name)) {
                chosen = variants + i;
            }
        }
    }
    return chosen;
}

#define F(name, result, parameters, arguments)                                                                        \
    result name parameters { return current()->name arguments; }
FUNCTIONS(F)
#undef F

void mithril_ggml_choose(size_t index) { chosen = variants + index; }

#else

void mithril_ggml_choose(size_t index) { (void)index; }

#endif
