/* openapi_schemas.c - schemas of what the handlers write, for openapi.c.
 *
 * Members that are always written are required.  Objects may get further members in later versions,
 * so no schema forbids them; tests/e2e/test_openapi.py finds those that are missing here. */
#include "openapi.h"

#include "inferd/base.h"

/* clang-format off */
#define COUNT      "{'type':'integer','minimum':0}"
#define NUMBER     "{'type':'number'}"
#define STRING     "{'type':'string'}"
#define BOOL       "{'type':'boolean'}"
#define OBJECT     "{'type':'object'}"
#define OR_NULL(t) "{'type':['" t "','null']}"
#define LIST(of)   "{'type':'array','items':" of "}"
#define REF(name)  "{'$ref':'#/components/schemas/" name "'}"
#define REF_OR_NULL(name) "{'anyOf':[" REF(name) ",{'type':'null'}]}"
#define MAP(of)    "{'type':'object','additionalProperties':" of "}"
#define STRUCT(required, properties) "{'type':'object','required':[" required "],'properties':{" properties "}}"
#define ENUM(words) "{'enum':[" words "]}"
#define STATES     ENUM("'none','cold','staging','warm','loading','hot','draining','failed'")
#define IDS        LIST(COUNT)
#define DRILL      "{'anyOf':[" ENUM("'lose','hang',null") "," NUMBER "]}"

/* Begins every answer and chunk of a generation. */
#define HEAD_REQUIRED "'id','object','created','model','system_fingerprint','service_tier','choices'"
#define HEAD(object) "'id':" STRING ",'object':{'const':'" object "'},'created':" COUNT ",'model':" STRING \
    ",'system_fingerprint':" STRING ",'service_tier':" ENUM("'priority','default','flex'")
#define FINISH "'finish_reason':" ENUM("'stop','length'") ",'stop_reason':{'type':['string','integer','null']}"
#define CHUNK_FINISH "'finish_reason':" ENUM("'stop','length',null") ",'stop_reason':{'type':['string','integer','null']}"
#define CHAT_FINISH "'finish_reason':" ENUM("'stop','length','tool_calls','function_call'") ",'stop_reason':{'type':['string','integer','null']}"
#define CHAT_CHUNK_FINISH "'finish_reason':" ENUM("'stop','length','tool_calls','function_call',null") ",'stop_reason':{'type':['string','integer','null']}"
#define REASONED "'reasoning_content':" STRING ",'reasoning':{'type':'string','description':'the same, under the name that other clients look for'}"
#define CHOICE_IDS "'token_ids':" IDS ",'prompt_token_ids':" IDS
#define RUNNING_USAGE "'usage':" REF_OR_NULL("Usage")

/* A field with the rules of that of a chat. */
#define OF_CHAT(name) "'" name "':{'$ref':'#/components/schemas/ChatRequest/properties/" name "'}"
#define NO_EFFECT(name) "'" name "':{'description':'no effect'}"

#define MESSAGE_STOP "'stop_reason':" ENUM("'end_turn','max_tokens','stop_sequence','tool_use',null") ",'stop_sequence':" OR_NULL("string")
#define MAY_BE(of) "{'anyOf':[{'type':'null'}," of "]}"
/* Those that are checked; the others are of any type. */
#define MESSAGES_FIELDS \
    "'model':" OR_NULL("string") ",'max_tokens':{'type':'integer','minimum':1,'maximum':2147483647}" \
    ",'messages':{'type':'array','minItems':1,'items':{'type':'object','required':['role','content'],'properties':{'role':" ENUM("'user','assistant','system'") ",'content':" REF("MessageContent") "}}}" \
    ",'system':" MAY_BE("{'anyOf':[" STRING "," LIST("{'anyOf':[" STRING ",{'type':'object','required':['text'],'properties':{'text':" STRING "}}]}") "]}") \
    ",'temperature':" MAY_BE("{'type':'number','minimum':0,'maximum':2}") ",'top_p':" MAY_BE("{'type':'number','exclusiveMinimum':0,'maximum':1}") \
    ",'top_k':" MAY_BE("{'type':'integer','minimum':-1,'maximum':2147483647}") ",'stream':" OR_NULL("boolean") \
    ",'stop_sequences':" MAY_BE("{'type':'array','maxItems':16,'items':{'type':'string','minLength':1,'maxLength':1024}}") \
    ",'tools':" MAY_BE("{'type':'array','maxItems':512,'items':{'anyOf':[{'type':'object','required':['name','input_schema'],'properties':{'name':{'type':'string','pattern':'^[a-zA-Z0-9_./-]{1,128}$'},'description':" OR_NULL("string") ",'input_schema':" OBJECT ",'strict':" OR_NULL("boolean") "}}," \
        "{'type':'object','description':'left out','required':['type'],'properties':{'type':{'type':'string','not':{'const':'custom'}}}}]}}") \
    ",'tool_choice':" MAY_BE("{'type':'object','required':['type'],'properties':{'type':" ENUM("'auto','any','none'") "}},{'type':'object','required':['type','name'],'properties':{'type':{'const':'tool'},'name':" STRING "}}") \
    ",'thinking':" MAY_BE("{'type':'object','required':['type'],'properties':{'type':" STRING ",'budget_tokens':{'description':'tokens, where the type is not disabled'}}}") \
    ",'output_config':" MAY_BE("{'type':'object','properties':{'effort':" OR_NULL("string") ",'format':" MAY_BE("{'type':'object','required':['type','schema'],'properties':{'type':{'const':'json_schema'},'schema':" OBJECT "}}") "}}") \
    "," OF_CHAT("seed") "," OF_CHAT("priority") "," OF_CHAT("cache_salt") "," OF_CHAT("keep_alive") "," OF_CHAT("chat_template_kwargs") \
    "," NO_EFFECT("metadata") "," NO_EFFECT("service_tier") "," NO_EFFECT("context_management") "," NO_EFFECT("cache_control") "," NO_EFFECT("betas") "," NO_EFFECT("anthropic_version") \
    ",'thread':{'type':'null','deprecated':true}"

static const openapi_schema schemas[] = {
    {"Error", STRUCT("'error'", "'error':" STRUCT("'message','type','param','code'",
        "'message':" STRING ",'type':" STRING ",'param':{'type':['string','null'],'description':'the path of a field, or the name of a header'},"
        "'code':{'type':['string','null'],'description':'branch on this'},'problems':{'type':'array','items':{'type':'string'},'description':'of a configuration that was refused'}"))},
    {"Usage", STRUCT("'prompt_tokens','completion_tokens','total_tokens'",
        "'prompt_tokens':" COUNT ",'completion_tokens':" COUNT ",'total_tokens':" COUNT ","
        "'prompt_tokens_details':" STRUCT("'cached_tokens'", "'cached_tokens':" COUNT) ","
        "'completion_tokens_details':" STRUCT("'reasoning_tokens'", "'reasoning_tokens':" COUNT) ","
        "'inferd':" REF("UsageDetails"))},
    {"UsageDetails", STRUCT("'queued_ms','queued_steps','preempted','class','preemptions','away_us','recomputed_tokens','preempt_cost_us','device_us'",
        "'queued_ms':" COUNT ",'queued_steps':" COUNT ",'preempted':" COUNT ",'class':" ENUM("'system','high','normal','batch'") ","
        "'preemptions':" STRUCT("'pause','park','recompute','model_out'", "'pause':" COUNT ",'park':" COUNT ",'recompute':" COUNT ",'model_out':" COUNT) ","
        "'away_us':" COUNT ",'recomputed_tokens':" COUNT ",'preempt_cost_us':" COUNT ",'device_us':" COUNT)},
    {"ChatTopLogprob", STRUCT("'token','logprob','bytes'", "'token':" STRING ",'logprob':" NUMBER ",'bytes':" LIST("{'type':'integer','minimum':0,'maximum':255}"))},
    {"ChatLogprob", STRUCT("'token','logprob','bytes','top_logprobs'",
        "'token':" STRING ",'logprob':" NUMBER ",'bytes':" LIST("{'type':'integer','minimum':0,'maximum':255}") ",'top_logprobs':" LIST(REF("ChatTopLogprob")))},
    {"ChatLogprobs", STRUCT("'content','refusal'", "'content':" LIST(REF("ChatLogprob")) ",'refusal':{'type':'null'}")},
    {"CompletionLogprobs", STRUCT("'tokens','token_logprobs','top_logprobs','text_offset'",
        "'tokens':" LIST(STRING) ",'token_logprobs':" LIST(OR_NULL("number")) ","
        "'top_logprobs':" LIST("{'type':['object','null'],'additionalProperties':" NUMBER "}") ",'text_offset':" LIST(COUNT))},
    {"ChatCompletion", STRUCT(HEAD_REQUIRED ",'usage'", HEAD("chat.completion") ",'choices':" LIST(REF("ChatChoice")) ",'usage':" REF("Usage") ",'prompt_token_ids':" IDS)},
    {"ChatChoice", STRUCT("'index','message','logprobs','finish_reason','stop_reason'",
        "'index':" COUNT ",'message':" STRUCT("'role','content','refusal'", "'role':{'const':'assistant'},'content':{'type':['string','null'],'description':'null beside tool calls'},'refusal':{'type':'null'},"
            REASONED ",'tool_calls':" LIST(REF("ToolCall")) ",'function_call':" REF("FunctionCall")) ","
        "'logprobs':" REF_OR_NULL("ChatLogprobs") "," CHAT_FINISH "," CHOICE_IDS)},
    {"FunctionCall", STRUCT("'name','arguments'", "'name':" STRING ",'arguments':{'type':'string','description':'JSON'}")},
    {"ToolCall", "{'anyOf':[" STRUCT("'id','type','function'", "'id':" STRING ",'type':{'const':'function'},'function':" REF("FunctionCall")) ","
        STRUCT("'id','type','custom'", "'id':" STRING ",'type':{'const':'custom'},'custom':" STRUCT("'name','input'", "'name':" STRING ",'input':" STRING)) "]}"},
    {"FunctionCallDelta", STRUCT("'arguments'", "'name':{'type':'string','description':'in the first part of a call'},'arguments':" STRING)},
    {"ToolCallDelta", STRUCT("'index'", "'index':" COUNT ",'id':{'type':'string','description':'in the first part of a call, like type and name'},'type':" ENUM("'function','custom'") ","
        "'function':" REF("FunctionCallDelta") ",'custom':" STRUCT("'input'", "'name':" STRING ",'input':" STRING))},
    {"ChatCompletionChunk", STRUCT(HEAD_REQUIRED, HEAD("chat.completion.chunk") ",'choices':" LIST(REF("ChatChunkChoice")) "," RUNNING_USAGE ",'prompt_token_ids':" IDS)},
    {"ChatChunkChoice", STRUCT("'index','delta','logprobs','finish_reason'",
        "'index':" COUNT ",'delta':" STRUCT("", "'role':{'const':'assistant'},'content':" STRING "," REASONED ",'tool_calls':" LIST(REF("ToolCallDelta")) ",'function_call':" REF("FunctionCallDelta")) ",'logprobs':" REF_OR_NULL("ChatLogprobs") "," CHAT_CHUNK_FINISH "," CHOICE_IDS)},
    {"Completion", STRUCT(HEAD_REQUIRED ",'usage'", HEAD("text_completion") ",'choices':" LIST(REF("CompletionChoice")) ",'usage':" REF("Usage"))},
    {"CompletionChoice", STRUCT("'index','text','logprobs','finish_reason','stop_reason'",
        "'index':" COUNT ",'text':" STRING ",'logprobs':" REF_OR_NULL("CompletionLogprobs") "," FINISH "," CHOICE_IDS)},
    {"CompletionChunk", STRUCT(HEAD_REQUIRED, HEAD("text_completion") ",'choices':" LIST(REF("CompletionChunkChoice")) "," RUNNING_USAGE)},
    {"CompletionChunkChoice", STRUCT("'index','text','logprobs','finish_reason'",
        "'index':" COUNT ",'text':" STRING ",'logprobs':" REF_OR_NULL("CompletionLogprobs") "," CHUNK_FINISH "," CHOICE_IDS)},
    /* /v1/responses: members that repeat the request are those of the request */
    {"ResponsesRequest", STRUCT("'input'", "'input':{'anyOf':[{'type':'string'},{'type':'array','minItems':1,'items':{'type':'object'}}],'description':'a text, or items: messages, calls, their outputs, reasoning; items of other types are left out'},"
        "'model':" OR_NULL("string") ",'instructions':" OR_NULL("string") ",'stream':" OR_NULL("boolean") ","
        "'tools':{'type':['array','null'],'maxItems':512,'items':" STRUCT("'type'", "'type':{'type':'string','description':'function, custom, namespace; others are left out'}") "},"
        "'tool_choice':{'anyOf':[{'enum':['none','auto','required',null]}," STRUCT("'type'", "'type':" STRING) "]},"
        "'parallel_tool_calls':" OR_NULL("boolean") ",'max_output_tokens':{'type':['integer','null'],'minimum':1,'maximum':2147483647},"
        "'temperature':{'type':['number','null'],'minimum':0,'maximum':2},'top_p':{'type':['number','null'],'exclusiveMinimum':0,'maximum':1},"
        "'text':{'type':['object','null'],'properties':{'format':{'type':['object','null'],'description':'text, json_object, json_schema'},'verbosity':{'enum':['low','medium','high',null]}}},"
        "'reasoning':{'type':['object','null'],'properties':{'effort':{'type':['string','null'],'description':'none, minimal, low, medium, high, xhigh, max; another word counts as max'}}},"
        "'service_tier':{'enum':['auto','default','flex','priority','scale','fast',null]},"
        "'metadata':{'type':['object','null'],'additionalProperties':" STRING "},'include':{'type':['array','null'],'items':" STRING "},"
        "'background':{'enum':[false,null]},'store':{'type':['boolean','null'],'description':'keep it, where the daemon has a state_dir'},'previous_response_id':{'type':['string','null'],'description':'of a response that was kept'},'conversation':{'type':'null','deprecated':true},'prompt':{'type':'null','deprecated':true},"
        OF_CHAT("top_k") "," OF_CHAT("min_p") "," OF_CHAT("presence_penalty") "," OF_CHAT("frequency_penalty") "," OF_CHAT("repetition_penalty") "," OF_CHAT("seed") "," OF_CHAT("stop") ","
        OF_CHAT("ignore_eos") "," OF_CHAT("min_tokens") "," OF_CHAT("thinking_token_budget") "," OF_CHAT("chat_template_kwargs") "," OF_CHAT("priority") "," OF_CHAT("cache_salt") ","
        OF_CHAT("cache_prompt") "," OF_CHAT("keep_alive") ","
        NO_EFFECT("truncation") "," NO_EFFECT("top_logprobs") "," NO_EFFECT("max_tool_calls") "," NO_EFFECT("stream_options") "," NO_EFFECT("context_management") ","
        NO_EFFECT("client_metadata") "," NO_EFFECT("user") "," NO_EFFECT("safety_identifier") "," NO_EFFECT("prompt_cache_key") "," NO_EFFECT("prompt_cache_options") "," NO_EFFECT("prompt_cache_retention"))},
    {"ModelResponse", STRUCT("'id','object','created_at','status','error','incomplete_details','model','service_tier','output','background','store','previous_response_id','truncation','usage',"
            "'temperature','top_p','max_output_tokens','parallel_tool_calls','tool_choice','reasoning','metadata','instructions','tools','text'",
        "'id':" STRING ",'object':{'const':'response'},'created_at':" COUNT ",'status':" ENUM("'in_progress','completed','incomplete','failed'") ",'completed_at':" COUNT ","
        "'error':{'anyOf':[{'type':'null'}," STRUCT("'code','message'", "'code':" STRING ",'message':" STRING) "]},"
        "'incomplete_details':{'anyOf':[{'type':'null'}," STRUCT("'reason'", "'reason':{'const':'max_output_tokens'}") "]},"
        "'model':" STRING ",'service_tier':" ENUM("'priority','default','flex'") ",'output':" LIST(REF("ResponseItem")) ","
        "'background':{'const':false},'store':" BOOL ",'previous_response_id':" OR_NULL("string") ",'truncation':{'const':'disabled'},'usage':" REF_OR_NULL("ResponseUsage") ","
        "'temperature':" OR_NULL("number") ",'top_p':" OR_NULL("number") ",'max_output_tokens':" OR_NULL("integer") ",'parallel_tool_calls':" BOOL ","
        "'tool_choice':{'type':['string','object']},'reasoning':{'type':'object'},'metadata':" MAP(STRING) ",'instructions':" OR_NULL("string") ","
        "'tools':{'type':'array','description':'without those that were left out; empty if they are long'},'text':{'type':'object'}")},
    {"ModelResponseDeleted", STRUCT("'id','object','deleted'", "'id':" STRING ",'object':{'const':'response'},'deleted':{'const':true}")},
    {"ResponseUsage", STRUCT("'input_tokens','input_tokens_details','output_tokens','output_tokens_details','total_tokens'",
        "'input_tokens':" COUNT ",'input_tokens_details':" STRUCT("'cached_tokens','cache_write_tokens'", "'cached_tokens':" COUNT ",'cache_write_tokens':" COUNT) ","
        "'output_tokens':" COUNT ",'output_tokens_details':" STRUCT("'reasoning_tokens'", "'reasoning_tokens':" COUNT) ",'total_tokens':" COUNT)},
    {"ResponsePart", STRUCT("'type','text'", "'type':" ENUM("'output_text','reasoning_text'") ",'text':" STRING ",'annotations':{'type':'array'},'logprobs':{'type':'array'}")},
    {"ResponseItem", STRUCT("'id','type'", "'id':" STRING ",'type':" ENUM("'message','reasoning','function_call','custom_tool_call'") ",'status':" ENUM("'in_progress','completed','incomplete'") ","
        "'role':{'const':'assistant'},'content':" LIST(REF("ResponsePart")) ",'summary':{'type':'array'},'encrypted_content':" STRING ","
        "'call_id':" STRING ",'name':" STRING ",'namespace':" STRING ",'arguments':{'type':'string','description':'JSON'},'input':" STRING)},
    {"ModelResponseChunk", STRUCT("'type','sequence_number'", "'type':{'type':'string','description':'also the name of the event: response.created ... response.completed, response.incomplete or response.failed'},'sequence_number':" COUNT ","
        "'response':" REF("ModelResponse") ",'item':" REF("ResponseItem") ",'part':" REF("ResponsePart") ",'output_index':" COUNT ",'content_index':" COUNT ",'item_id':" STRING ","
        "'delta':" STRING ",'text':" STRING ",'arguments':" STRING ",'input':" STRING ",'name':" STRING ",'logprobs':{'type':'array'}")},
    {"Sampling", STRUCT("'value','from'", "'value':" NUMBER ",'from':" ENUM("'default','generation_config.json','gguf','configuration'"))},
    {"Model", STRUCT("'id','object','created','owned_by','root','parent','max_model_len','sampling','tool_format','reasoning'",
        "'id':" STRING ",'object':{'const':'model'},'created':" COUNT ",'owned_by':" STRING ",'root':{'type':'string','description':'of an alias: its model'},"
        "'parent':{'type':'null'},'max_model_len':{'type':'integer','minimum':1,'description':'tokens of the context'},"
        "'sampling':{'type':'object','additionalProperties':" REF("Sampling") ",'description':'what a request gets that gives none'},"
        "'tool_format':{'type':'string','description':'how it writes tool calls; none: it cannot'},'tool_format_refused':{'type':'string','description':'why the tool calls of its chat template cannot be read'},"
        "'reasoning':{'type':'boolean','description':'it may reason before it answers'}")},
    {"ModelList", STRUCT("'object','data'", "'object':{'const':'list'},'data':" LIST(REF("Model")))},
    {"Tokens", STRUCT("'count','max_model_len','tokens','token_strs'",
        "'count':" COUNT ",'max_model_len':" COUNT ",'tokens':" IDS ",'token_strs':{'type':['array','null'],'items':" STRING "}")},
    {"Text", STRUCT("'prompt'", "'prompt':" STRING)},
    {"Health", STRUCT("'status'", "'status':" ENUM("'ok','device_lost'"))},
    {"Ready", STRUCT("'status','states'", "'status':" ENUM("'ready','draining','no_models','failed','loading'") ",'states':" MAP(COUNT) ","
        "'models':{'type':'object','additionalProperties':" STATES ",'description':'only where no tenants are configured'}")},
    {"Document", STRUCT("'openapi'", "'openapi':{'const':'3.1.0'}")},
    {"Version", STRUCT("'version'", "'version':" STRING)},
    {"Audit", STRUCT("'ok','devices','front'", "'ok':" BOOL ",'devices':" LIST(STRUCT("'ok'", "'ok':" BOOL)) ","
        "'front':" STRUCT("'generations','sequences','sequences_max','exchanges'", "'generations':" COUNT ",'sequences':" COUNT ",'sequences_max':" COUNT ",'exchanges':" COUNT))},
    {"State", STRUCT("'devices','models','leaving','tenants','account','queues','places','config','version','started_at','draining'",
        "'devices':" LIST(STRUCT("'name','kind','pages','lost','drill'", "'name':" STRING ",'kind':" STRING ",'pages':" OBJECT ",'lost':" BOOL ",'drill':" DRILL)) ",'models':" LIST(REF("ModelState")) ",'leaving':" LIST(OBJECT) ","
        "'tenants':" LIST(REF("TenantState")) ",'account':" OBJECT ",'queues':" OBJECT ",'places':" OBJECT ",'config':" OBJECT ","
        "'version':" STRING ",'started_at':" COUNT ",'draining':" BOOL)},
    {"ModelState", STRUCT("'name','aliases','state','pages'", "'name':" STRING ",'aliases':" LIST(STRING) ",'state':" STATES ",'pages':" OBJECT)},
    {"TenantState", STRUCT("'name','class','keys'", "'name':" STRING ",'class':" ENUM("'system','high','normal','batch'") ",'keys':" COUNT)},
    {"CommandState", STRUCT("'model','state'", "'model':" STRING ",'state':" STATES)},
    {"Applied", STRUCT("'applied','persisted','needs_restart'", "'applied':{'const':true},'persisted':" BOOL ",'needs_restart':" LIST(STRING) ","
        "'warning':" STRING ",'model':" REF("ModelState") ",'tenant':" REF("TenantState"))},
    {"Drill", STRUCT("'device','drill'", "'device':" STRING ",'drill':" DRILL)},
    {"SlowCommand", "{'type':'object','additionalProperties':false,'required':['times'],'properties':{'times':{'anyOf':["
        "{'type':'number','minimum':1,'maximum':1000},{'const':'hang'}],'description':'how many times as long a step takes; 1: as usual'}}}"},
    {"Configuration", OBJECT},
    {"Plan", STRUCT("'fits'", "'fits':" BOOL)},
    {"Running", STRUCT("'running'", "'running':" LIST(STRUCT("'model','state','ttl'", "'model':" STRING ",'state':" ENUM("'ready','starting','stopping'") ",'ttl':" COUNT)))},
    {"Done", STRUCT("'msg'", "'msg':" STRING)},
    /* /v1/messages */
    {"MessagesRequest", "{'type':'object','required':['max_tokens','messages'],'properties':{" MESSAGES_FIELDS "}}"},
    {"CountTokensRequest", "{'type':'object','required':['messages'],'properties':{" MESSAGES_FIELDS "}}"},
    {"MessageContent", "{'anyOf':[" STRING "," LIST("{'type':'object','required':['type'],'properties':{'type':{'type':'string','minLength':1,'description':'text, tool_use, tool_result, thinking, redacted_thinking; image and document are refused, others have no effect'}}}") "]}"},
    {"Message", STRUCT("'id','type','role','model','content','stop_reason','stop_sequence','usage'", "'id':" STRING ",'type':{'const':'message'},'role':{'const':'assistant'},'model':" STRING ",'content':" LIST(REF("MessageBlock")) "," MESSAGE_STOP ",'usage':" REF("MessageUsage"))},
    {"MessageBlock", STRUCT("'type'", "'type':" ENUM("'text','thinking','tool_use'") ",'text':" STRING ",'thinking':" STRING ",'signature':{'const':''},'id':" STRING ",'name':" STRING ",'input':" OBJECT)},
    {"MessageUsage", STRUCT("'input_tokens','cache_creation_input_tokens','cache_read_input_tokens','output_tokens'", "'input_tokens':{'type':'integer','minimum':0,'description':'those that were not in the cache'},'cache_creation_input_tokens':{'const':0},'cache_read_input_tokens':" COUNT ",'output_tokens':" COUNT ",'output_tokens_details':" STRUCT("'thinking_tokens'", "'thinking_tokens':" COUNT))},
    {"MessageChunk", STRUCT("'type'", "'type':" ENUM("'message_start','content_block_start','content_block_delta','content_block_stop','message_delta','message_stop'") ",'index':" COUNT ",'message':" REF("Message") ",'content_block':" REF("MessageBlock")
        ",'delta':{'type':'object','properties':{'type':" ENUM("'text_delta','thinking_delta','signature_delta','input_json_delta'") ",'text':" STRING ",'thinking':" STRING ",'signature':{'const':''},'partial_json':" STRING "," MESSAGE_STOP "}},'usage':" REF("MessageUsage"))},
    {"MessageTokens", STRUCT("'input_tokens'", "'input_tokens':" COUNT)},
    {"MessageError", STRUCT("'type','error','request_id'", "'type':{'const':'error'},'error':" STRUCT("'type','message'", "'type':" STRING ",'message':" STRING ",'details':" STRUCT("'error_code'", "'error_code':" STRING ",'unsupported':" LIST(STRING))) ",'request_id':" OR_NULL("string"))},
    /* bodies of administrators */
    {"Command", "{'type':'object','additionalProperties':false,'properties':{'wait':{'type':'boolean','description':'answer when the command is complete'},"
        "'timeout_ms':{'type':'integer','minimum':0,'maximum':86400000,'description':'of the wait; default 60000'}}}"},
    {"PinCommand", "{'type':'object','additionalProperties':false,'properties':{'wait':" BOOL ",'timeout_ms':{'type':'integer','minimum':0,'maximum':86400000},"
        "'level':{'enum':['hot','warm'],'description':'default hot'}}}"},
    {"Patch", "{'type':'object','description':'a JSON merge patch of members of the configuration; persist: write the file, too','properties':{'persist':" BOOL "}}"},
    {"PlanQuestion", "{'type':'object','minProperties':1,'maxProperties':1,'additionalProperties':false,'properties':{'load':{'type':'string','description':'a model that is served'},"
        "'model':{'type':'object','description':'one as the configuration has it'},'tenant':{'type':'object','description':'likewise'}}}"},
};
/* clang-format on */

const openapi_schema *openapi_schemas(size_t *n) {
    *n = INFERD_COUNT(schemas);
    return schemas;
}
