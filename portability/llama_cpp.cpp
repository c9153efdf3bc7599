// Loads a file of GGUF with llama.cpp, feeds it numbers of tokens, and writes the logits of all of them as float32; or
// writes the numbers of the tokens of a text, as int32.
#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

static int fails(const char *what) {
    fprintf(stderr, "llama.cpp: %s fails\n", what);
    return 1;
}

// What llama.cpp says goes to stderr, where it is shown if something fails.
static void log_text(ggml_log_level, const char *text, void *) { fputs(text, stderr); }

static int tokens_of(const char *file, const char *text) {
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    llama_model *model = llama_model_load_from_file(file, params);
    if (!model) return fails("loading the tokenizer");
    std::vector<llama_token> found(strlen(text) + 8);
    const llama_vocab *vocabulary = llama_model_get_vocab(model);
    int n = llama_tokenize(vocabulary, text, (int)strlen(text), found.data(), (int)found.size(), true, true);
    if (n < 0) return fails("reading the text");
    fwrite(found.data(), sizeof(llama_token), (size_t)n, stdout);
    llama_model_free(model);
    return 0;
}

int main(int count, char **words) {
    if (count < 3) return fails("the call: FILE TOKEN..., or --text TEXT FILE;");
    llama_log_set(log_text, nullptr);
    llama_backend_init();
    if (!strcmp(words[1], "--text")) return tokens_of(words[3], words[2]);
    llama_model *model = llama_model_load_from_file(words[1], llama_model_default_params());
    if (!model) return fails("loading the file");
    std::vector<llama_token> tokens;
    for (int i = 2; i < count; i++) tokens.push_back(atoi(words[i]));

    // Everything in float32, as Mithril computes it: by default keys and values are kept in 16 bits.
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = 32;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = GGML_TYPE_F32;
    llama_context *context = llama_init_from_model(model, params);
    if (!context) return fails("making a context");

    llama_batch batch = llama_batch_init((int32_t)tokens.size(), 0, 1);
    for (llama_token token : tokens) {
        int i = batch.n_tokens++;
        batch.token[i] = token;
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    if (llama_decode(context, batch)) return fails("decoding");
    size_t vocabulary = (size_t)llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (int i = 0; i < batch.n_tokens; i++) fwrite(llama_get_logits_ith(context, i), sizeof(float), vocabulary, stdout);
    llama_batch_free(batch);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
