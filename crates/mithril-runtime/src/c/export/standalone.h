
#ifndef @PREFIX@_STANDALONE
#define @PREFIX@_STANDALONE

@packed_type@#ifdef __cplusplus
extern "C" {
#endif

/* How many inputs @prefix@_run takes, how many of them are data, and how many outputs it writes, new states included. */
#define @PREFIX@_INPUTS @inputs@
#define @PREFIX@_DATA @data_count@
#define @PREFIX@_OUTPUTS @outputs@

/* Which of the inputs are data. */
@data_places@
/* Data, in order:
@data_list@
   Outputs, in order:
@output_list@ */

@inside_declaration@#ifndef MITHRIL_NO_MALLOC
@mesh_files@/* A model with its weights, its memory and its threads. One call at a time; open it several times for more. */
typedef struct @prefix@_model @prefix@_model;

/* Opens the model, for calls on so many threads (less than 2: the caller's alone).
   @weights_note@@mesh_note@
   NULL: errno says why. */
@prefix@_model *@prefix@_open(const char *weights, int threads@mesh_parameter@);

/* Runs the model on data into outputs, in the order above, each contiguous; the states stay in the model. 0, or a code
   for @prefix@_error. */
int @prefix@_call(@prefix@_model *model, const void *const data[], void *const outputs[]);
@batch_declaration@
/* The current value of a parameter or state that is kept as it was given, by its number:
@weight_list@   NULL: there is no such number. */
const void *@prefix@_weight(const @prefix@_model *model, int number);

void @prefix@_close(@prefix@_model *model);
#endif

#ifdef __cplusplus
}
#endif

#endif
