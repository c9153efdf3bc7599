// A file of GGUF in llama.cpp: for each line of the input, `prompt N` or `token N`, the milliseconds of a prompt of N
// tokens, or of one token that follows N, and those that the processor spent on this thread.
#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

static int fails(const char *what) {
    fprintf(stderr, "llama.cpp: %s fails\n", what);
    return 1;
}

static double milliseconds(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

int main(int count, char **words) {
    if (count != 4) return fails("the call: FILE THREADS CONTEXT;");
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    llama_model *model = llama_model_load_from_file(words[1], llama_model_default_params());
    if (!model) return fails("loading the file");
    // As llama.cpp runs by default, but for these.
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = (uint32_t)atoi(words[3]);
    params.n_threads = params.n_threads_batch = atoi(words[2]);
    llama_context *context = llama_init_from_model(model, params);
    if (!context) return fails("making a context");
    llama_memory_t memory = llama_get_memory(context);
    int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    char what[16];
    for (int n, length = 0; scanf("%15s %d", what, &n) == 2;) {
        bool is_prompt = !strcmp(what, "prompt");
        if (!is_prompt && length < n) return fails("a token without its prompt");
        // What came after the prompt before is forgotten.
        llama_memory_seq_rm(memory, 0, is_prompt ? 0 : n, -1);
        std::vector<llama_token> tokens;
        for (int i = 0; i < (is_prompt ? n : 1); i++) tokens.push_back((i * 7919 + 13) % vocabulary);
        double start = milliseconds(CLOCK_MONOTONIC), on_thread = milliseconds(CLOCK_THREAD_CPUTIME_ID);
        // The logits of the last token.
        if (llama_decode(context, llama_batch_get_one(tokens.data(), (int32_t)tokens.size()))) return fails("decoding");
        const float *logits = llama_get_logits_ith(context, -1);
        on_thread = milliseconds(CLOCK_THREAD_CPUTIME_ID) - on_thread;
        double time = milliseconds(CLOCK_MONOTONIC) - start;
        if (!logits) return fails("reading the logits");
        length = is_prompt ? n : n + 1;
        printf("%.4f %.4f\n", time, on_thread);
        fflush(stdout);
    }
    llama_free(context);
    llama_model_free(model);
    return 0;
}
