// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Stream;
import org.djlx.collectives.NullArguments;
import org.djlx.llm.EmbeddingModel;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.GeneratorStatistics;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.sampling.TokenLogProbability;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ContextLengthException;
import org.djlx.llm.text.TextTokenizer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

@Timeout(60)
class TextApiTest {

    /** Characters are tokens; special tokens are one token 0 at the start. */
    private static class Characters implements TextGenerator, TextTokenizer {

        @Override
        public List<Generation> submitAll(List<GenerationRequest> requests) {
            throw new IllegalStateException("nothing is generated here");
        }

        @Override
        public int maxLength() {
            return 200;
        }

        @Override
        public Optional<TextTokenizer> tokenizer() {
            return Optional.of(this);
        }

        @Override
        public GeneratorStatistics statistics() {
            return new GeneratorStatistics(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        }

        @Override
        public Optional<String> unavailabilityCause() {
            return Optional.empty();
        }

        @Override
        public int[] encode(String text, boolean specialTokens) {
            return ((specialTokens ? "\u0000" : "") + text).chars().toArray();
        }

        @Override
        public String decode(int[] tokens) {
            return new String(tokens, 0, tokens.length);
        }

        @Override
        public Set<String> specialTokens() {
            return Set.of("<|python_tag|>");
        }

        @Override
        public void close() {}
    }

    /** A generation that has ended. */
    private record Ended(FinishReason reason, List<GeneratedPiece> promptPieces)
            implements Generation {

        Ended(FinishReason reason) {
            this(reason, List.of());
        }

        @Override
        public GeneratedPiece next(Duration timeout) {
            return null;
        }

        @Override
        public Optional<GeneratedPiece> poll() {
            return Optional.empty();
        }

        @Override
        public List<GeneratedPiece> await(Duration timeout) {
            return List.of();
        }

        @Override
        public void cancel() {}

        @Override
        public Optional<FinishReason> finishReason() {
            return Optional.of(reason);
        }

        @Override
        public Optional<Throwable> failure() {
            return Optional.empty();
        }

        @Override
        public int promptTokens() {
            return 3;
        }

        @Override
        public int cachedTokens() {
            return 1;
        }

        @Override
        public int generatedTokens() {
            return 2;
        }

        @Override
        public void onProgress(Runnable listener) {}
    }

    private static final List<GeneratedPiece> PIECES =
            List.of(new GeneratedPiece(7, "he", -0.5f), new GeneratedPiece(8, "llo", -0.25f));

    private static final ChatTemplate LLAMA_3 =
            new ChatTemplate(
                    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' +"
                            + " message['role'] + '<|end_header_id|>\\n"
                            + "\\n"
                            + "' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if"
                            + " add_generation_prompt %}{{"
                            + " '<|start_header_id|>assistant<|end_header_id|>\\n"
                            + "\\n"
                            + "' }}{% endif %}{% if note is defined %}{{ note }}{% endif %}",
                    Map.of("bos_token", "<|begin_of_text|>"));

    private final TextApi api = new TextApi("tiny", new Characters(), LLAMA_3);

    private static byte[] bytes(String json) {
        return json.replace('\'', '"').getBytes(StandardCharsets.UTF_8);
    }

    private TextCall read(String json) {
        return api.read(bytes(json));
    }

    private static String text(GenerationRequest request) {
        int[] tokens = request.promptTokens().orElseThrow();
        return new String(tokens, 0, tokens.length);
    }

    private static JsonObject json(String text) {
        return JsonParser.parseString(text).getAsJsonObject();
    }

    @Test
    void aChatBecomesAPromptOfTheTemplate() {
        TextCall call =
                read(
                        "{'model':'tiny','messages':[{'role':'system','content':'Be brief.'},"
                                + "{'role':'user','content':[{'type':'text','text':'Hi '},"
                                + "{'type':'text','text':'there '}]}],'temperature':0.5,"
                                + "'top_p':0.9,'seed':-9223372036854775808,'stop':'\\n',"
                                + "'max_completion_tokens':12,'n':1,'presence_penalty':0.0,"
                                + "'logit_bias':{},'user':'me','response_format':{'type':'text'}}");
        assertEquals(
                "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
                        + "<|start_header_id|>user<|end_header_id|>\n\nHi there<|eot_id|>"
                        + "<|start_header_id|>assistant<|end_header_id|>\n\n",
                text(call.requests().get(0)));
        assertEquals(0.5, call.requests().get(0).temperature());
        assertEquals(0.9, call.requests().get(0).topP());
        assertEquals(Long.MIN_VALUE, call.requests().get(0).seed().orElseThrow());
        assertEquals(List.of("\n"), call.requests().get(0).stopStrings());
        assertEquals(12, call.requests().get(0).maxTokens());
        assertFalse(call.format().isStreamed());
    }

    @Test
    void templatesGetOptions() {
        TextCall call =
                read(
                        "{'messages':[{'role':'user','content':'Hi'}],"
                                + "'add_generation_prompt':false,"
                                + "'chat_template_kwargs':{'note':7}}");
        assertTrue(text(call.requests().get(0)).endsWith("Hi<|eot_id|>7"));
    }

    @Test
    void aChatWithoutALimitGoesOnToTheModelsLength() {
        TextApi plain = new TextApi("tiny", new Characters(), ChatTemplate.PLAIN);
        GenerationRequest request =
                plain.chat(bytes("{'messages':[{'role':'user','content':'x'}]}")).requests().get(0);
        assertEquals("\u0000user: x\nassistant:", text(request));
        assertEquals(200 - 19, request.maxTokens());
        assertEquals(1, request.temperature());
    }

    @Test
    void completionsTakeTextOrTokens() {
        GenerationRequest text =
                read("{'prompt':'Once','max_tokens':5,'top_k':3}").requests().get(0);
        assertEquals("Once", text.prompt().orElseThrow());
        assertEquals(5, text.maxTokens());
        assertEquals(3, text.topK());
        assertEquals("Once", read("{'prompt':['Once']}").requests().get(0).prompt().orElseThrow());
        int[] one = read("{'prompt':[[79]]}").requests().get(0).promptTokens().orElseThrow();
        assertArrayEquals(new int[] {79}, one);
        GenerationRequest tokens = read("{'prompt':[79,110],'temperature':0}").requests().get(0);
        assertArrayEquals(new int[] {79, 110}, tokens.promptTokens().orElseThrow());
        assertEquals(16, tokens.maxTokens());
        assertEquals(0, tokens.temperature());
    }

    @Test
    void everyPromptOfSeveralIsARequest() {
        List<GenerationRequest> texts =
                read("{'prompt':['a','b'],'max_tokens':3,'seed':5}").requests();
        assertEquals(List.of("a", "b"), texts.stream().map(each -> each.prompt().get()).toList());
        for (GenerationRequest each : texts) {
            assertEquals(3, each.maxTokens());
            assertEquals(5, each.seed().orElseThrow());
        }
        List<GenerationRequest> mixed = read("{'prompt':[[1,2],'b',[3]]}").requests();
        assertArrayEquals(new int[] {1, 2}, mixed.get(0).promptTokens().get());
        assertEquals("b", mixed.get(1).prompt().get());
        assertArrayEquals(new int[] {3}, mixed.get(2).promptTokens().get());
        List<GenerationRequest> inputs = read("{'inputs':['a','b']}").requests();
        assertEquals(List.of("a", "b"), inputs.stream().map(each -> each.prompt().get()).toList());
    }

    @Test
    void answersToSeveralPromptsAreInTheirOrder() {
        List<List<GeneratedPiece>> pieces = List.of(PIECES, PIECES.subList(0, 1));
        List<Generation> ended =
                List.of(new Ended(FinishReason.STOP), new Ended(FinishReason.LENGTH));
        JsonObject whole =
                json(read("{'prompt':['x','y'],'echo':true}").format().whole(pieces, ended));
        assertEquals(
                "[{\"text\":\"xhello\",\"index\":0,\"logprobs\":null,\"finish_reason\":\"stop\"},"
                        + "{\"text\":\"yhe\",\"index\":1,\"logprobs\":null,"
                        + "\"finish_reason\":\"length\"}]",
                JsonOptions.GSON.toJson(whole.get("choices")));
        JsonObject usage = whole.getAsJsonObject("usage");
        assertEquals(6, usage.get("prompt_tokens").getAsInt());
        assertEquals(10, usage.get("total_tokens").getAsInt());
        JsonObject details = usage.getAsJsonObject("prompt_tokens_details");
        assertEquals(2, details.get("cached_tokens").getAsInt());
        assertEquals(
                "[{\"generated_text\":\"hello\"},{\"generated_text\":\"he\"}]",
                read("{'inputs':['x','y']}").format().whole(pieces, ended));
        assertEquals(
                "[{\"generated_text\":\"hello\"}]",
                read("{'inputs':['x']}").format().whole(pieces.subList(0, 1), ended.subList(0, 1)));
    }

    @Test
    void invocationsAreGreedyUnlessTheyAskForMore() {
        GenerationRequest greedy = read("{'inputs':'Once'}").requests().get(0);
        assertEquals(0, greedy.temperature());
        assertEquals(30, greedy.maxTokens());
        assertEquals(
                1, read("{'inputs':'O','parameters':{'top_k':5}}").requests().get(0).temperature());
        assertEquals(
                0,
                read("{'inputs':'O','parameters':{'top_k':5,'do_sample':false}}")
                        .requests()
                        .get(0)
                        .temperature());
        GenerationRequest all =
                read("{'inputs':'O','parameters':{'do_sample':true,'temperature':2,"
                                + "'top_p':0.5,'repetition_penalty':1.5,'seed':7,"
                                + "'max_new_tokens':9,'stop_sequences':['a','b'],"
                                + "'ignore_eos_token':true}}")
                        .requests()
                        .get(0);
        assertEquals(2, all.temperature());
        assertEquals(1.5, all.repetitionPenalty());
        assertEquals(7, all.seed().orElseThrow());
        assertEquals(List.of("a", "b"), all.stopStrings());
        assertTrue(all.ignoresEndOfText());
    }

    @Test
    void stopTokensAreTakenInBothSchemas() {
        int[] expected = {7, 0};
        for (String json :
                List.of(
                        "{'prompt':'x','stop_token_ids':[7,0]}",
                        "{'messages':[{'role':'user','content':'x'}],'stop_token_ids':[7,0]}",
                        "{'inputs':'x','parameters':{'stop_token_ids':[7,0]}}")) {
            assertArrayEquals(expected, read(json).requests().get(0).stopTokens(), json);
        }
        assertEquals(
                0,
                read("{'prompt':'x','stop_token_ids':null}").requests().get(0).stopTokens().length);
    }

    private static String array(String element, int count) {
        return "[" + String.join(",", Collections.nCopies(count, element)) + "]";
    }

    private record Bad(String json, int status, String message) {}

    static Stream<Bad> badRequests() {
        String message = "{'role':'user','content':'x'}";
        return Stream.of(
                new Bad("", 400, "send JSON"),
                new Bad("{", 400, "not JSON"),
                new Bad("[]", 400, "not a JSON object"),
                new Bad("7", 400, "not a JSON object"),
                new Bad("{} {}", 400, "not JSON"),
                new Bad("[".repeat(100_000), 400, "not JSON that can be read"),
                new Bad("{'prompt':" + "[".repeat(80) + "]".repeat(80) + "}", 400, "esting"),
                new Bad("{}", 400, "'prompt' must be a non-empty text"),
                new Bad("{'prompt':''}", 400, "'prompt' must be"),
                new Bad("{'prompt':null}", 400, "'prompt' must be"),
                new Bad("{'prompt':[]}", 400, "'prompt' must be"),
                new Bad("{'prompt':[1.5]}", 400, "'prompt[0]' must be a whole number"),
                new Bad("{'prompt':[1,-1]}", 400, "'prompt[1]' must be a whole number"),
                new Bad("{'prompt':['a','']}", 400, "'prompt[1]' must be a non-empty text"),
                new Bad("{'prompt':['a',2]}", 400, "'prompt[1]' must be a string"),
                new Bad("{'prompt':['a',null]}", 400, "'prompt[1]' must be a non-empty text"),
                new Bad("{'prompt':[1,'a']}", 400, "'prompt[1]' must be a whole number"),
                new Bad(
                        "{'prompt':[[1],[]]}",
                        400,
                        "'prompt[1]' must be a non-empty text or array of tokens"),
                new Bad("{'prompt':[[1],[[2]]]}", 400, "'prompt[1][0]' must be a whole number"),
                new Bad("{'prompt':['a','b'],'prompt[0]':'c'}", 400, "unknown option 'prompt[0]'"),
                new Bad("{'prompt':{}}", 400, "'prompt' must be a string"),
                new Bad("{'prompt':'a\\ud800'}", 400, "JSON that can be read: Unpaired surrogate"),
                new Bad("{'prompt':'x','tempo':1}", 400, "unknown option 'tempo'"),
                new Bad("{'prompt':'x','temperature':'1'}", 400, "'temperature' must be a number"),
                new Bad("{'prompt':'x','temperature':-1}", 400, "'temperature' must be a number"),
                new Bad("{'prompt':'x','temperature':1e999}", 400, "'temperature' must be"),
                new Bad("{'prompt':'x','temperature':NaN}", 400, "not JSON"),
                new Bad("{'prompt':'x','top_p':0}", 400, "'top_p' must be a number above 0 and"),
                new Bad("{'prompt':'x','top_k':2147483648}", 400, "'top_k' must be"),
                new Bad("{'prompt':'x','max_tokens':0}", 400, "'max_tokens' must be"),
                new Bad("{'prompt':'x','max_tokens':1e1000000000}", 400, "'max_tokens' must"),
                new Bad("{'prompt':'x','seed':9223372036854775808}", 400, "'seed' must be"),
                new Bad("{'prompt':'x','stop':['']}", 400, "'stop' must be"),
                new Bad("{'prompt':'x','stop':[1]}", 400, "'stop' must be a string or an array of"),
                new Bad("{'prompt':'x','stop':1}", 400, "'stop' must be a string or an array of"),
                new Bad("{'prompt':'x','stop':['a'" + ",'a'".repeat(16) + "]}", 400, "at most 16"),
                new Bad("{'prompt':'x','stream':'yes'}", 400, "'stream' must be true or false"),
                new Bad("{'prompt':'x','stream':true,'stream_options':1}", 400, "an object"),
                new Bad("{'prompt':'x','n':0}", 400, "'n' must be a whole number from 1 to 128"),
                new Bad("{'prompt':['x','y'],'n':65}", 400, "'n' must be a whole number from 1 to"),
                new Bad("{'prompt':'x','n':2,'best_of':3}", 400, "'best_of' must be the same as"),
                new Bad("{'prompt':'x','logprobs':21}", 400, "'logprobs' must be a whole number"),
                new Bad("{'prompt':'x','logprobs':true}", 400, "'logprobs' must be a whole"),
                new Bad("{'prompt':'x','suffix':'y'}", 400, "'suffix' must be \"\""),
                new Bad("{'prompt':'x','logit_bias':{'5':101}}", 400, "'logit_bias.5'"),
                new Bad("{'prompt':'x','logit_bias':{'a':1}}", 400, "by token id, not by 'a'"),
                new Bad("{'prompt':'x','max_tokens':3,'min_tokens':4}", 400, "min_tokens must"),
                new Bad("{'prompt':'x','allowed_token_ids':[1]}", 400, "unknown option"),
                new Bad(
                        "{'prompt':'x','model':'other'}",
                        404,
                        "unknown model 'other'; this server has 'tiny'"),
                new Bad("{'messages':[]}", 400, "'messages' must be"),
                new Bad("{'messages':[1]}", 400, "'messages' must be"),
                new Bad("{'messages':[{}]}", 400, "'messages[0].role' must be"),
                new Bad("{'messages':[{'role':'function','content':'x'}]}", 400, "role' must be"),
                new Bad("{'messages':[{'role':'user'}]}", 400, "'messages[0].content' must"),
                new Bad(
                        "{'messages':[{'role':'user','content':[{'type':'image_url'}]}]}",
                        400,
                        "'messages[0].content[0].type' must be text"),
                new Bad(
                        "{'messages':[" + message + "],'chat_template_kwargs':1}",
                        400,
                        "'chat_template_kwargs' must be an object"),
                new Bad(
                        "{'messages':[" + message + "],'max_tokens':3,'max_completion_tokens':3}",
                        400,
                        "'max_tokens' must be left out beside 'max_completion_tokens'"),
                new Bad(
                        "{'messages':[" + message + "],'top_logprobs':1}",
                        400,
                        "'logprobs' must be true if 'top_logprobs' is set"),
                new Bad(
                        "{'messages':[{'role':'assistant','content':'x','tool_calls':[{}]}]}",
                        400,
                        "'messages[0].tool_calls[0].function.name' must be the name of a tool"),
                new Bad("{'inputs':[]}", 400, "'inputs' must be a string"),
                new Bad("{'inputs':['a','']}", 400, "'inputs[1]' must be a non-empty text"),
                new Bad("{'inputs':['a',['b']]}", 400, "'inputs[1]' must be a string"),
                new Bad("{'inputs':['a'],'stream':true}", 400, "'stream' must be false if"),
                new Bad("{'inputs':'a','parameters':[]}", 400, "'parameters' must be an object"),
                new Bad(
                        "{'inputs':'a','parameters':{'num_beams':2}}",
                        400,
                        "'parameters.num_beams' must be 1; other values are not supported"),
                new Bad("{'inputs':'a','model':'other'}", 404, "unknown model 'other'"),
                new Bad(
                        "{'inputs':'a','parameters':{'decoder_input_details':true}}",
                        400,
                        "'parameters.decoder_input_details' must be false"),
                new Bad(
                        "{'inputs':'a','parameters':{'presence_penalty':2.5}}",
                        400,
                        "'parameters.presence_penalty' must be a number from -2.0 to 2.0"),
                new Bad(
                        "{'inputs':'a','parameters':{'n':2}}",
                        400,
                        "'parameters.n' must be 1; other values are not supported"),
                new Bad("{'prompt':'x','stop_token_ids':7}", 400, "must be an array of whole"),
                new Bad(
                        "{'prompt':'x','stop_token_ids':" + array("7", 129) + "}",
                        400,
                        "at most 128 whole numbers"),
                new Bad("{'prompt':" + array("'x'", 129) + "}", 400, "at most 128 prompts"),
                new Bad("{'inputs':" + array("'x'", 129) + "}", 400, "at most 128 prompts"),
                new Bad(
                        "{'inputs':'x','parameters':{'stop_token_ids':[7,-1]}}",
                        400,
                        "'parameters.stop_token_ids[1]' must be a whole number from 0"),
                new Bad("{'prompt':'x','min_p':1.1}", 400, "'min_p' must be a number from 0.0 to"),
                new Bad("{'prompt':'x','top_k':-2}", 400, "'top_k' must be"));
    }

    @ParameterizedTest
    @MethodSource("badRequests")
    void badRequestsGetAMessage(Bad bad) {
        ApiException e = assertThrows(ApiException.class, () -> read(bad.json));
        assertTrue(e.getMessage().contains(bad.message), e.getMessage());
        JsonObject json = json(e.toJson());
        boolean isObject = !bad.message.contains("JSON") && !bad.message.equals("esting");
        if (bad.json.contains("inputs") || !isObject) {
            JsonObject expected = new JsonObject();
            expected.addProperty("error", e.getMessage());
            expected.addProperty("code", bad.status);
            assertEquals(expected, json);
        } else {
            JsonObject error = json.getAsJsonObject("error");
            assertEquals(bad.status, error.get("code").getAsInt());
            assertEquals(e.getMessage(), error.get("message").getAsString());
        }
    }

    @ParameterizedTest
    @CsvSource({
        "400,invalid_request_error",
        "401,authentication_error",
        "403,permission_error",
        "404,not_found_error",
        "413,invalid_request_error",
        "429,rate_limit_error",
        "500,server_error",
        "503,server_error",
        "504,timeout_error"
    })
    void theStatusDecidesTheErrorType(int status, String type) {
        JsonObject json = json(new ApiException(status, null, "failed").toJson());
        assertEquals(type, json.getAsJsonObject("error").get("type").getAsString());
    }

    @Test
    void invocationsMaySendOptionsWithoutEffect() {
        GenerationRequest request =
                read("{'inputs':'O','parameters':{'decoder_input_details':false,'n':1,"
                                + "'best_of':1,'presence_penalty':0.0,'frequency_penalty':0,"
                                + "'min_p':0.0,'top_k':-1,'num_beams':1,'early_stopping':false,"
                                + "'length_penalty':1.0,'min_length':1,'skip_special_tokens':true,"
                                + "'spaces_between_special_tokens':true,"
                                + "'include_stop_str_in_output':false,'logprobs':null},"
                                + "'model':'tiny'}")
                        .requests()
                        .get(0);
        assertEquals(0, request.topK());
    }

    /** Refuses texts by their length, and encodes no other. */
    private static final class Strict extends Characters {

        @Override
        public long leastTokens(String text) {
            return text.length();
        }

        @Override
        public int[] encode(String text, boolean specialTokens) {
            assertTrue(text.length() <= maxLength(), "encoded");
            return super.encode(text, specialTokens);
        }
    }

    private static final String LETTERS = "a".repeat(201);

    @Test
    void promptsThatAreTooLongAreRefusedBeforeTheyAreEncoded() {
        TextApi strict = new TextApi("tiny", new Strict(), ChatTemplate.PLAIN);
        String message = "{\"role\": \"user\", \"content\": \"%s\"}";
        String many = String.join(",", Collections.nCopies(25, message.formatted("a")));
        List<String> messages = List.of(many, message.formatted(LETTERS));
        List<String> chats =
                messages.stream().map(each -> "{\"messages\": [" + each + "]}").toList();
        Stream<Executable> calls =
                Stream.concat(
                        chats.stream().map(chat -> () -> strict.chat(bytes(chat))),
                        Stream.of(
                                () -> strict.tokenize(bytes(chats.get(0))),
                                () -> strict.tokenize(bytes("{'prompt':'" + LETTERS + "'}"))));
        calls.forEach(
                call -> {
                    ApiException e = assertThrows(ApiException.class, call);
                    String text = e.getMessage();
                    assertTrue(text.contains("the context length of this model, 200"), text);
                    assertTrue(e.toJson().contains("context_length_exceeded"), e.toJson());
                });
    }

    /** Only the rendered prompt counts. */
    @Test
    void chatsMayHaveMessagesThatTheTemplateLeavesOut() {
        ChatTemplate last = new ChatTemplate("{{ messages[-1].content }}", Map.of());
        TextApi strict = new TextApi("tiny", new Strict(), last);
        String message = "{'role':'user','content':'%s'}";
        String old = String.join(",", Collections.nCopies(300, message.formatted(LETTERS)));
        String chat = "{'messages':[" + old + "," + message.formatted("Hi") + "]}";
        assertEquals(2, strict.chat(bytes(chat)).requests().get(0).promptTokens().get().length);
    }

    @Test
    void textThatIsNotUtf8IsRefused() {
        byte[] bytes = bytes("{'prompt':'x'}");
        bytes[11] = (byte) 0xff;
        ApiException e = assertThrows(ApiException.class, () -> api.read(bytes));
        assertEquals("the request is not UTF-8", e.getMessage());
    }

    private static String streamed(AnswerFormat format, FinishReason reason) {
        StringBuilder answer = new StringBuilder(format.begin());
        Generation ended = new Ended(reason);
        PIECES.forEach(piece -> answer.append(format.piece(0, piece, ended)));
        return answer.append(format.end(0, ended)).append(format.end(List.of(ended))).toString();
    }

    private static String whole(AnswerFormat format, Generation ended) {
        return format.whole(List.of(PIECES), List.of(ended));
    }

    private static List<String> events(String answer) {
        assertTrue(answer.endsWith("data: [DONE]\n\n"), answer);
        return Stream.of(answer.split("\n\n"))
                .map(event -> event.substring("data: ".length()))
                .toList();
    }

    @Test
    void chatsAnswerLikeOpenAi() {
        String request = "'messages':[{'role':'user','content':'x'}]";
        AnswerFormat format = read("{" + request + "}").format();
        assertEquals("application/json", format.contentType());
        JsonObject whole = json(whole(format, new Ended(FinishReason.STOP)));
        assertEquals("chat.completion", whole.get("object").getAsString());
        assertEquals("tiny", whole.get("model").getAsString());
        JsonObject choice = whole.getAsJsonArray("choices").get(0).getAsJsonObject();
        assertEquals("hello", choice.getAsJsonObject("message").get("content").getAsString());
        assertEquals("stop", choice.get("finish_reason").getAsString());
        assertEquals(5, whole.getAsJsonObject("usage").get("total_tokens").getAsInt());

        format =
                read("{" + request + ",'stream':true,'stream_options':{'include_usage':true}}")
                        .format();
        assertEquals("text/event-stream", format.contentType());
        List<String> events = events(streamed(format, FinishReason.LENGTH));
        assertEquals(6, events.size());
        assertFalse(events.get(0).contains("usage"));
        StringBuilder text = new StringBuilder();
        for (String event : events.subList(0, 4)) {
            JsonObject chunk = json(event);
            assertEquals("chat.completion.chunk", chunk.get("object").getAsString());
            JsonObject delta =
                    chunk.getAsJsonArray("choices")
                            .get(0)
                            .getAsJsonObject()
                            .getAsJsonObject("delta");
            text.append(delta.has("content") ? delta.get("content").getAsString() : "");
        }
        assertEquals("hello", text.toString());
        assertTrue(events.get(0).contains("\"role\":\"assistant\""), events.get(0));
        assertTrue(events.get(2).contains("\"finish_reason\":null"), events.get(2));
        assertTrue(events.get(3).contains("\"finish_reason\":\"length\""), events.get(3));
        assertTrue(events.get(4).contains("\"completion_tokens\":2"), events.get(4));
    }

    @Test
    void completionsAnswerLikeOpenAi() {
        AnswerFormat format = read("{'prompt':'x','echo':true}").format();
        JsonObject whole = json(whole(format, new Ended(FinishReason.LENGTH)));
        JsonObject choice = whole.getAsJsonArray("choices").get(0).getAsJsonObject();
        assertEquals("xhello", choice.get("text").getAsString());
        assertEquals("length", choice.get("finish_reason").getAsString());
        List<String> events =
                events(streamed(read("{'prompt':'x','stream':true}").format(), FinishReason.STOP));
        assertEquals(4, events.size());
        assertTrue(events.get(0).contains("\"text\":\"he\""), events.get(0));
        assertTrue(events.get(2).contains("\"finish_reason\":\"stop\""), events.get(2));
    }

    @Test
    void invocationsAnswerLikeDjlServing() {
        AnswerFormat format =
                read("{'inputs':'x','parameters':{'details':true,'return_full_text':true}}")
                        .format();
        JsonObject whole = json(whole(format, new Ended(FinishReason.STOP)));
        assertEquals("xhello", whole.get("generated_text").getAsString());
        JsonObject details = whole.getAsJsonObject("details");
        assertEquals("eos_token", details.get("finish_reason").getAsString());
        JsonObject stopped = json(whole(format, new Ended(FinishReason.STOP_STRING)));
        assertEquals(
                "stop_sequence",
                stopped.getAsJsonObject("details").get("finish_reason").getAsString());
        JsonArray tokens = details.getAsJsonArray("tokens");
        assertEquals(-0.25, tokens.get(1).getAsJsonObject().get("log_prob").getAsDouble());
        assertEquals(
                "{\"generated_text\":\"hello\"}",
                whole(read("{'inputs':'x'}").format(), new Ended(FinishReason.STOP)));

        format = read("{'inputs':'x','stream':true}").format();
        assertEquals("application/jsonlines", format.contentType());
        List<String> lines = streamed(format, FinishReason.LENGTH).lines().toList();
        assertEquals("{\"token\":{\"id\":7,\"text\":\"he\",\"log_prob\":-0.5}}", lines.get(0));
        assertEquals(
                "{\"token\":{\"id\":8,\"text\":\"llo\",\"log_prob\":-0.25},"
                        + "\"generated_text\":\"hello\",\"details\":{\"finish_reason\":\"length\","
                        + "\"generated_tokens\":2,\"inputs\":\"x\"}}",
                lines.get(1));
        assertEquals(2, lines.size());
    }

    @Test
    void failuresOnTheWayAreToldInTheFormat() {
        ApiException failure = new ApiException(500, null, "rank 1 failed");
        String event = read("{'prompt':'x','stream':true}").format().failure(failure);
        assertTrue(event.startsWith("data: {\"error\":{\"message\":\"rank 1 failed\""), event);
        String line = read("{'inputs':'x','stream':true}").format().failure(failure);
        assertTrue(line.contains("\"finish_reason\":\"error\""), line);
        assertTrue(line.endsWith("}\n"), line);
        assertEquals(
                "{\"error\":\"rank 1 failed\",\"code\":500}",
                read("{'inputs':'x'}").format().refusal(failure).toJson());
        String refusal = read("{'prompt':'x'}").format().refusal(failure).toJson();
        assertTrue(refusal.startsWith("{\"error\":{\"message\":"), refusal);
    }

    /**
     * Every parameter of OpenAI's chat completions: honoured values, neutral ones, and the start of
     * the message for one that is refused.
     */
    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            textBlock =
                    """
                    audio | null | {'voice':'x'} | unknown option 'audio'
                    frequency_penalty | 0.5,0,null | 3 | 'frequency_penalty' must be a number
                    function_call | 'none','auto',null | {'name':'x'} | 'function_call' must be
                    functions | [],null | [{'name':'x'}] | 'functions' must be []
                    logit_bias | {'5':-100},{},null | {'5':'x'} | 'logit_bias.5' must be a number
                    logprobs | true,false,null | 5 | 'logprobs' must be true or false
                    max_completion_tokens | 5,null | 0 | 'max_completion_tokens' must be
                    max_tokens | 5,null | 0 | 'max_tokens' must be
                    metadata | {'a':'b'},null | |
                    modalities | ['text'],null | ['text','audio'] | 'modalities' must be ["text"]
                    model | 'tiny',null | 'gpt' | unknown model 'gpt'
                    n | 3,1,null | 0 | 'n' must be
                    parallel_tool_calls | true,false,null | |
                    prediction | {'type':'content','content':'x'},null | |
                    presence_penalty | -2,0.0,null | 'x' | 'presence_penalty' must be a number
                    prompt_cache_key | 'x',null | |
                    prompt_cache_retention | '24h',null | |
                    reasoning_effort | 'none',null | 'high' | 'reasoning_effort' must be "none"
                    response_format | {'type':'text'},{'type':'json_object'},null | {'type':'structural_tag'} | 'response_format.type' must be
                    safety_identifier | 'x',null | |
                    seed | 5,null | 0.5 | 'seed' must be
                    service_tier | 'auto','flex',null | |
                    stop | 'x',['x','y'],null | 5 | 'stop' must be
                    store | false,true,null | |
                    stream | true,false,null | 1 | 'stream' must be true or false
                    stream_options | {'include_usage':true,'include_obfuscation':false},null | {'x':1} | unknown option 'stream_options.x'
                    temperature | 0,1.5,null | -1 | 'temperature' must be
                    tool_choice | 'none','auto',null | 'required' | 'tool_choice' must be one of the tools
                    tools | [],null | [{'type':'function','function':{'name':'f'}}] | 'tools' must be left out
                    top_logprobs | 0,null | 21 | 'top_logprobs' must be
                    top_p | 0.5,1,null | 0 | 'top_p' must be
                    user | 'x',null | |
                    verbosity | 'medium',null | 'low' | 'verbosity' must be "medium"
                    web_search_options | null | {} | unknown option 'web_search_options'
                    """)
    void everyParameterOfChatsIsHonouredOrNeutralOrRefused(
            String name, String accepted, String refused, String message) {
        String chat = "{'messages':[{'role':'user','content':'x'}],'" + name + "':";
        for (JsonElement value :
                JsonParser.parseString("[" + accepted.replace('\'', '"') + "]").getAsJsonArray()) {
            assertFalse(read(chat + value + "}").requests().isEmpty(), name);
        }
        if (refused != null) {
            ApiException e = assertThrows(ApiException.class, () -> read(chat + refused + "}"));
            assertTrue(e.getMessage().startsWith(message), e.getMessage());
        }
    }

    @Test
    void samplingOptionsReachTheRequest() {
        for (String start :
                List.of(
                        "{'prompt':'x','max_tokens':9,",
                        "{'inputs':'x','parameters':{'do_sample':true,")) {
            GenerationRequest request =
                    read(start
                                    + "'frequency_penalty':0.5,'presence_penalty':-1,'min_p':0.2,"
                                    + "'min_tokens':3,'logit_bias':{'7':-2.5}}"
                                    + (start.contains("inputs") ? "}" : ""))
                            .requests()
                            .get(0);
            assertEquals(0.5, request.frequencyPenalty());
            assertEquals(-1, request.presencePenalty());
            assertEquals(0.2, request.minP());
            assertEquals(3, request.minTokens());
            assertEquals(Map.of(7, -2.5), request.logitBias());
        }
    }

    @Test
    void takesMessagesOfItsAnswers() {
        TextCall call =
                read(
                        "{'messages':[{'role':'user','name':'me','content':'Hi'},{'role':'assistant',"
                            + "'content':'Yo','refusal':null,'parsed':null,'audio':null,"
                            + "'annotations':[],'tool_calls':[],'function_call':null}]}");
        assertTrue(text(call.requests().get(0)).contains("Yo<|eot_id|>"));
    }

    @Test
    void everyChoiceHasASeedOfItsOwn() {
        TextCall call = read("{'prompt':['x','y'],'n':2,'best_of':2,'seed':5,'echo':true}");
        List<GenerationRequest> requests = call.requests();
        assertEquals(
                List.of("x", "x", "y", "y"),
                requests.stream().map(each -> each.prompt().get()).toList());
        assertEquals(
                List.of(5L, 6L, 5L, 6L),
                requests.stream().map(each -> each.seed().getAsLong()).toList());
        Generation ended = new Ended(FinishReason.STOP);
        JsonObject whole =
                json(
                        call.format()
                                .whole(
                                        Collections.nCopies(4, PIECES),
                                        Collections.nCopies(4, ended)));
        assertEquals(4, whole.getAsJsonArray("choices").size());
        assertEquals(
                "yhello",
                whole.getAsJsonArray("choices").get(3).getAsJsonObject().get("text").getAsString());
        JsonObject usage = whole.getAsJsonObject("usage");
        assertEquals(6, usage.get("prompt_tokens").getAsInt()); // each prompt once
        assertEquals(8, usage.get("completion_tokens").getAsInt());
        List<GenerationRequest> random =
                read("{'messages':[{'role':'user','content':'x'}],'n':3}").requests();
        assertEquals(3, random.size());
        assertTrue(random.stream().allMatch(each -> each.seed().isEmpty()));
    }

    @Test
    void streamedChoicesBeginOnTheirOwn() {
        AnswerFormat format =
                read("{'messages':[{'role':'user','content':'x'}],'n':2,'stream':true}").format();
        Generation ended = new Ended(FinishReason.STOP);
        String second = format.piece(1, PIECES.get(0), ended);
        assertTrue(second.startsWith("data: "), second);
        assertEquals(2, second.split("\"index\":1").length - 1);
        assertTrue(second.contains("\"role\":\"assistant\""), second);
        assertFalse(format.piece(1, PIECES.get(1), ended).contains("role"));
        assertTrue(format.end(0, ended).contains("\"role\":\"assistant\""));
    }

    private static final List<GeneratedPiece> LISTED =
            List.of(
                    new GeneratedPiece(
                            'h',
                            "",
                            -0.5f,
                            List.of(
                                    new TokenLogProbability('g', -0.25f),
                                    new TokenLogProbability('h', -0.5f))),
                    new GeneratedPiece(
                            0xFFFD, "h\uFFFD", -1, List.of(new TokenLogProbability('i', -0.125f))));

    private static String choice(String answer) {
        JsonObject choice = json(answer).getAsJsonArray("choices").get(0).getAsJsonObject();
        return JsonOptions.GSON.toJson(choice.get("logprobs"));
    }

    @Test
    void chatsListLogProbabilities() {
        String request = "{'messages':[{'role':'user','content':'x'}],'logprobs':true,";
        TextCall call = read(request + "'top_logprobs':2}");
        assertEquals(2, call.requests().get(0).topLogProbabilities());
        String h = "{\"token\":\"h\",\"logprob\":-0.5,\"bytes\":[104]";
        String expected =
                "{\"content\":["
                        + h
                        + ",\"top_logprobs\":[{\"token\":\"g\",\"logprob\":-0.25,\"bytes\":[103]},"
                        + h
                        + "}]},{\"token\":\"\uFFFD\",\"logprob\":-1.0,\"bytes\":null,"
                        + "\"top_logprobs\":[{\"token\":\"i\",\"logprob\":-0.125,"
                        + "\"bytes\":[105]}]}],\"refusal\":null}";
        Generation ended = new Ended(FinishReason.STOP);
        assertEquals(expected, choice(call.format().whole(List.of(LISTED), List.of(ended))));
        AnswerFormat streamed = read(request + "'stream':true}").format();
        // The first piece has no text yet, but log probabilities.
        String first = streamed.piece(0, LISTED.get(0), ended).split("\n\n")[1];
        assertTrue(first.contains("\"content\":\"\"") && first.contains(h), first);
    }

    @Test
    void completionsListLogProbabilitiesOfThePromptToo() {
        TextCall call = read("{'prompt':'ab','echo':true,'logprobs':1}");
        assertTrue(call.requests().get(0).hasPromptLogProbabilities());
        assertFalse(
                read("{'prompt':'ab','logprobs':1}").requests().get(0).hasPromptLogProbabilities());
        assertFalse(
                read("{'prompt':'ab','echo':true}").requests().get(0).hasPromptLogProbabilities());
        List<GeneratedPiece> prompt =
                List.of(
                        new GeneratedPiece('a', "", Float.NaN),
                        new GeneratedPiece('b', "", -2, List.of(new TokenLogProbability('c', -1))));
        Generation ended = new Ended(FinishReason.STOP, prompt);
        String expected =
                "{\"tokens\":[\"a\",\"b\",\"h\",\"\uFFFD\"],"
                        + "\"token_logprobs\":[null,-2.0,-0.5,-1.0],"
                        + "\"top_logprobs\":[null,{\"b\":-2.0,\"c\":-1.0},"
                        + "{\"h\":-0.5,\"g\":-0.25},{\"\uFFFD\":-1.0,\"i\":-0.125}],"
                        + "\"text_offset\":[0,1,2,3]}";
        assertEquals(expected, choice(call.format().whole(List.of(LISTED), List.of(ended))));
        AnswerFormat streamed =
                read("{'prompt':'ab','echo':true,'logprobs':1,'stream':true}").format();
        List<String> events =
                Stream.of(
                                (streamed.piece(0, LISTED.get(0), ended)
                                                + streamed.piece(0, LISTED.get(1), ended))
                                        .split("\n\n"))
                        .map(event -> choice(event.substring("data: ".length())))
                        .toList();
        assertEquals(3, events.size());
        assertTrue(events.get(0).contains("\"tokens\":[\"a\",\"b\"]"), events.get(0));
        assertTrue(events.get(1).contains("\"text_offset\":[2]"), events.get(1));
        assertTrue(events.get(2).contains("\"text_offset\":[3]"), events.get(2));
    }

    @Test
    void responsesAnswerLikeOpenAi() {
        TextCall call =
                api.response(
                        bytes(
                                "{'model':'tiny','instructions':'Be"
                                    + " brief.','input':[{'role':'user',"
                                    + "'content':[{'type':'input_text','text':'Hi'}]},{'type':'message',"
                                    + "'id':'msg_1','status':'completed','role':'assistant','content':["
                                    + "{'type':'output_text','text':'Yo','annotations':[],'logprobs':[]}"
                                    + "]},{'role':'user','content':'So?'}],'max_output_tokens':7,"
                                    + "'temperature':0.5,'store':false,'tools':[],'truncation':"
                                    + "'disabled','text':{'format':{'type':'text'}}}"));
        GenerationRequest request = call.requests().get(0);
        assertEquals(
                "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
                        + "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                        + "<|start_header_id|>assistant<|end_header_id|>\n\nYo<|eot_id|>"
                        + "<|start_header_id|>user<|end_header_id|>\n\nSo?<|eot_id|>"
                        + "<|start_header_id|>assistant<|end_header_id|>\n\n",
                text(request));
        assertEquals(7, request.maxTokens());
        JsonObject whole = json(whole(call.format(), new Ended(FinishReason.STOP)));
        assertEquals("response", whole.get("object").getAsString());
        assertEquals("completed", whole.get("status").getAsString());
        assertEquals(0.5, whole.get("temperature").getAsDouble());
        assertEquals("Be brief.", whole.get("instructions").getAsString());
        JsonObject message = whole.getAsJsonArray("output").get(0).getAsJsonObject();
        assertEquals("message", message.get("type").getAsString());
        assertEquals(
                "[{\"type\":\"output_text\",\"text\":\"hello\",\"annotations\":[],\"logprobs\":[]}]",
                message.get("content").toString());
        JsonObject usage = whole.getAsJsonObject("usage");
        assertEquals(3, usage.get("input_tokens").getAsInt());
        assertEquals(2, usage.get("output_tokens").getAsInt());
        assertEquals(
                1, usage.getAsJsonObject("input_tokens_details").get("cached_tokens").getAsInt());
        JsonObject cut = json(whole(call.format(), new Ended(FinishReason.LENGTH)));
        assertEquals("incomplete", cut.get("status").getAsString());
        assertEquals(
                "{\"reason\":\"max_output_tokens\"}", cut.get("incomplete_details").toString());
    }

    @Test
    void responsesStreamEventsWithNames() {
        AnswerFormat format = api.response(bytes("{'input':'Hi','stream':true}")).format();
        String answer = streamed(format, FinishReason.STOP);
        List<String> names = new ArrayList<>();
        List<JsonObject> events = new ArrayList<>();
        for (String event : answer.split("\n\n")) {
            String[] lines = event.split("\n");
            names.add(lines[0].substring("event: response.".length()));
            events.add(json(lines[1].substring("data: ".length())));
        }
        assertEquals(
                List.of(
                        "created",
                        "in_progress",
                        "output_item.added",
                        "content_part.added",
                        "output_text.delta",
                        "output_text.delta",
                        "output_text.done",
                        "content_part.done",
                        "output_item.done",
                        "completed"),
                names);
        for (int i = 0; i < events.size(); i++) {
            assertEquals("response." + names.get(i), events.get(i).get("type").getAsString());
            assertEquals(i, events.get(i).get("sequence_number").getAsInt());
        }
        assertEquals("llo", events.get(5).get("delta").getAsString());
        assertEquals("hello", events.get(6).get("text").getAsString());
        JsonObject last = events.get(9).getAsJsonObject("response");
        assertEquals(events.get(0).getAsJsonObject("response").get("id"), last.get("id"));
        assertEquals(5, last.getAsJsonObject("usage").get("total_tokens").getAsInt());
        assertTrue(
                streamed(
                                api.response(bytes("{'input':'Hi','stream':true}")).format(),
                                FinishReason.LENGTH)
                        .contains("event: response.incomplete\n"));
        ApiException failure = new ApiException(500, null, "rank 1 failed");
        assertTrue(format.failure(failure).startsWith("event: error\ndata: {\"type\":\"error\""));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            textBlock =
                    """
                    {} | 'input' must be a non-empty text
                    {'input':'x','previous_response_id':'resp_1'} | 'previous_response_id' must be null
                    {'input':'x','background':true} | 'background' must be false
                    {'input':'x','truncation':'auto'} | 'truncation' must be "disabled"
                    {'input':'x','reasoning':{'effort':'high'}} | 'reasoning.effort' must be "none"
                    {'input':'x','text':{'format':{'type':'grammar'}}} | 'text.format.type' must be text, json_object or json_schema
                    {'input':[{'type':'item_reference','id':'x'}]} | 'input[0].type' must be message, reasoning, function_call or function_call_output; no items are stored
                    {'input':'x','tools':[{'type':'web_search'}]} | 'tools[0].type' must be function
                    {'input':'x','tools':[{'type':'function','name':'f'}]} | 'tools' must be left out
                    {'input':[{'type':'function_call','call_id':'c','name':'f','arguments':'['}]} | 'input[0].arguments' must be a JSON object
                    {'input':[{'type':'function_call_output','call_id':'c','output':5}]} | 'input[0].output' must be a string
                    """)
    void responsesRefuseWhatWouldChangeThem(String request, String message) {
        ApiException e = assertThrows(ApiException.class, () -> api.response(bytes(request)));
        assertTrue(e.getMessage().startsWith(message), e.getMessage());
    }

    @Test
    void promptsAndChatsAreTokenized() {
        assertEquals(
                "{\"count\":3,\"max_model_len\":200,\"tokens\":[0,72,105],\"token_strs\":null}",
                api.tokenize(bytes("{'model':'tiny','prompt':'Hi'}")));
        JsonObject plain = json(api.tokenize(bytes("{'prompt':'Hi','add_special_tokens':false}")));
        assertEquals(2, plain.get("count").getAsInt());
        String chat = "{'messages':[{'role':'user','content':'Hi'}]}";
        assertEquals(
                read(chat).requests().get(0).promptTokens().get().length,
                json(api.tokenize(bytes(chat))).get("count").getAsInt());
        assertThrows(ApiException.class, () -> api.tokenize(bytes("{'prompt':'x','x':1}")));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            textBlock =
                    """
                    {'prompt':'x'}                                  | max_tokens is 16
                    {'prompt':'x','max_tokens':300}                 | max_tokens is 300
                    {'messages':[M],'max_tokens':300}               | max_tokens is 300
                    {'messages':[M],'max_completion_tokens':300}    | max_completion_tokens is 300
                    {'messages':[M]}                                | max_completion_tokens is 83
                    {'inputs':'x','parameters':{'max_new_tokens':7}}| max_new_tokens is 7
                    {'inputs':'x'}                                  | max_new_tokens is 30
                    """)
    void requestsThatAreTooLongHaveOpenAisCodeAndNameTheField(String json, String part) {
        TextGenerator full =
                new Characters() {
                    @Override
                    public List<Generation> submitAll(List<GenerationRequest> requests) {
                        throw new ContextLengthException(200, requests.get(0).maxTokens(), 200);
                    }
                };
        TextCall call = read(json.replace("M", "{'role':'user','content':'x'}"));
        ApiException e = assertThrows(ApiException.class, () -> call.submit(full));
        assertEquals(400, e.status());
        assertTrue(e.getMessage().contains("200 tokens and " + part), e.getMessage());
        JsonObject error = json(e.toJson());
        if (json.contains("inputs")) {
            assertEquals(400, error.get("code").getAsInt());
        } else {
            assertEquals(
                    "context_length_exceeded",
                    error.getAsJsonObject("error").get("code").getAsString());
        }
    }

    private static EmbeddingModel noEmbeddings() {
        return (EmbeddingModel)
                Proxy.newProxyInstance(
                        TextApiTest.class.getClassLoader(),
                        new Class<?>[] {EmbeddingModel.class},
                        (proxy, method, values) -> null);
    }

    @Test
    void nullsAreRefusedByName() {
        NullArguments nulls =
                new NullArguments()
                        .sample(TextGenerator.class, Characters::new)
                        .sample(ChatTemplate.class, () -> LLAMA_3)
                        .sample(
                                GenerationRequest.class,
                                () -> read("{'inputs':'x'}").requests().get(0))
                        .sample(AnswerFormat.class, () -> read("{'inputs':'x'}").format())
                        .sample(TextApi.class, () -> api)
                        .sample(EmbeddingModel.class, TextApiTest::noEmbeddings)
                        .sample(EmbeddingApi.class, () -> new EmbeddingApi("none", noEmbeddings()))
                        .sample(Path.class, () -> Path.of("none"))
                        .sample(Object.class, Object::new)
                        .sample(TextCall.class, () -> read("{'inputs':'x'}"))
                        .sample(
                                ServerOptions.class,
                                () ->
                                        new ServerOptions(
                                                "127.0.0.1",
                                                0,
                                                null,
                                                List.of(),
                                                1,
                                                1,
                                                1,
                                                Duration.ofSeconds(1),
                                                Duration.ofSeconds(1),
                                                Duration.ofSeconds(1)))
                        .sample(TextAnswer.class, () -> new TextAnswer(null, List.of()))
                        .sample(Runnable.class, () -> () -> {})
                        .sample("requests", List::of)
                        .except("AnswerFormat", "what it words comes from a generation")
                        .except("Commands.main", "it ends the JVM")
                        .except("Main.main", "it ends the JVM")
                        .except("ModelOptions", "a command line fills it")
                        .except("ServerOptions", "a command line fills it");
        assertEquals("", String.join("\n", nulls.check(TextApi.class)));
        assertTrue(nulls.calls() > 10, "" + nulls.calls());
    }
}
