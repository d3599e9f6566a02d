import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.JavaType;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.JsonSerializer;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import com.fasterxml.jackson.databind.SerializerProvider;
import com.fasterxml.jackson.databind.module.SimpleModule;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.client.impl.BatchMessageIdImpl;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.apache.pulsar.common.functions.UpdateOptions;
import org.apache.pulsar.common.functions.UpdateOptionsImpl;
import org.apache.pulsar.common.util.ObjectMapperFactory;

/**
 * Calls any method of Pulsar's admin library, many in one JVM.
 *
 * <p>The argument is the broker's HTTP URL. A line on standard input is one call, a JSON array of texts: the group (a
 * method of PulsarAdmin), the method and its arguments; {@code --global} before these is of {@code topicPolicies(true)}. Objects are given as JSON, identifiers of messages as {@code LEDGER:ENTRY[:PARTITION[:BATCH]]}, earliest or
 * latest, those of transactions as {@code MOST:LEAST}. Where overloads have as many parameters, the first type that an
 * argument can be is taken: a truth value, a number, an object, a text; {@code (TYPE)ARGUMENT} names one. The answer is
 * one line too, a JSON object: {@code code} (0, the HTTP status of a refusal, or 1), {@code out} and {@code err}.
 *
 * <p>Without an argument it lists the methods: group, method, and the number of parameters, or -1 if each
 * overload of it is deprecated. Left out are deprecated overloads, the asynchronous twin of a method, and the groups
 * {@code sink} and {@code source}, which are {@code sinks} and {@code sources} by their older names.
 */
public final class AdminMethods {
  private static final ObjectMapper MAPPER = mapper();

  private AdminMethods() {}

  public static void main(String[] arguments) throws Exception {
    if (arguments.length == 0) {
      list().forEach(System.out::println);
    } else {
      serve(arguments[0]);
    }
    System.out.flush();
    // The library's threads would keep the JVM.
    Runtime.getRuntime().halt(0);
  }

  private static void serve(String url) throws Exception {
    PrintStream answers = System.out;
    System.setOut(System.err);
    PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(url).build();
    BufferedReader calls = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = calls.readLine(); line != null; line = calls.readLine()) {
      List<String> words = Arrays.asList(MAPPER.readValue(line, String[].class));
      int code = 0;
      String out = "";
      String err = "";
      try {
        out = call(admin, words.get(0), words.get(1), words.subList(2, words.size()));
      } catch (PulsarAdminException refusal) {
        code = Math.max(refusal.getStatusCode(), 1);
        err = refusal.getClass().getSimpleName() + ": " + refusal.getHttpError();
        if (refusal.getStatusCode() <= 0) {
          err = refusal.getClass().getSimpleName() + ": " + refusal.getMessage();
        }
      } catch (Exception problem) {
        code = 1;
        err = problem.toString();
      }
      answers.println(MAPPER.writeValueAsString(Map.of("code", code, "out", out, "err", err)));
      answers.flush();
    }
  }

  private static String call(PulsarAdmin admin, String group, String name, List<String> all) throws Exception {
    boolean global = !all.isEmpty() && all.get(0).equals("--global");
    List<String> words = global ? all.subList(1, all.size()) : all;
    Method open = PulsarAdmin.class.getMethod(group);
    Object of = global ? admin.topicPolicies(true) : open.invoke(admin);
    List<Method> overloads = Stream.of(open.getReturnType().getMethods())
        .filter(each -> each.getName().equals(name) && each.getParameterCount() == words.size())
        .sorted(Comparator.comparing(AdminMethods::preference))
        .toList();
    List<String> problems = new ArrayList<>();
    for (Method method : overloads) {
      Object[] arguments;
      try {
        arguments = arguments(method, words);
      } catch (Exception problem) {
        problems.add(method + ": " + problem);
        continue;
      }
      return answer(method, invoked(method, of, arguments));
    }
    throw new IllegalArgumentException("no method " + group + "." + name + " takes these: " + problems);
  }

  private static Object invoked(Method method, Object of, Object[] arguments) throws Exception {
    try {
      Object returned = method.invoke(of, arguments);
      return returned instanceof CompletableFuture<?> future ? future.join() : returned;
    } catch (InvocationTargetException | CompletionException problem) {
      throw problem.getCause() instanceof Exception cause ? cause : problem;
    }
  }

  private static String answer(Method method, Object returned) throws Exception {
    if (returned == null) {
      return method.getReturnType() == void.class ? "" : "null";
    }
    return returned instanceof String text ? text : MAPPER.writeValueAsString(returned);
  }

  // -- arguments ------------------------------------------------------------------------------------------------

  /** Orders overloads by the types of their parameters, from those that few texts can be to those that any can. */
  private static String preference(Method method) {
    return Stream.of(method.getParameterTypes())
        .map(each -> each == boolean.class ? "0" : each.isPrimitive() ? "1" : each == String.class ? "3" : "2")
        .collect(Collectors.joining()) + method;
  }

  private static Object[] arguments(Method method, List<String> words) throws Exception {
    Object[] arguments = new Object[words.size()];
    for (int at = 0; at < arguments.length; at++) {
      JavaType type = MAPPER.constructType(method.getGenericParameterTypes()[at]);
      String word = words.get(at);
      if (word.startsWith("(")) {
        int end = word.indexOf(')');
        if (!type.getRawClass().getSimpleName().equals(word.substring(1, end))) {
          throw new IllegalArgumentException(type + " is not " + word);
        }
        word = word.substring(end + 1);
      }
      arguments[at] = argument(type, word);
    }
    return arguments;
  }

  private static Object argument(JavaType type, String word) throws Exception {
    Class<?> raw = type.getRawClass();
    if (raw == Optional.class) {
      return word.equals("null") ? Optional.empty() : Optional.of(argument(type.containedType(0), word));
    }
    if (word.equals("null") && !raw.isPrimitive()) {
      return null;
    }
    if (raw == String.class) {
      return word;
    }
    if (raw == MessageId.class) {
      return messageId(word);
    }
    if (raw == TxnID.class) {
      String[] bits = word.split(":");
      return new TxnID(Long.parseLong(bits[0]), Long.parseLong(bits[1]));
    }
    if (raw == Predicate.class) {
      return (Predicate<Object>) anything -> Boolean.parseBoolean(word);
    }
    if (raw.isEnum()) {
      return MAPPER.convertValue(word, type);
    }
    return built(type, MAPPER.readTree(word));
  }

  private static MessageId messageId(String word) {
    if (word.equals("earliest") || word.equals("latest")) {
      return word.equals("earliest") ? MessageId.earliest : MessageId.latest;
    }
    long[] parts = Stream.of(word.split(":")).mapToLong(Long::parseLong).toArray();
    int partition = parts.length > 2 ? (int) parts[2] : -1;
    return parts.length > 3
        ? new BatchMessageIdImpl(parts[0], parts[1], partition, (int) parts[3])
        : new MessageIdImpl(parts[0], parts[1], partition);
  }

  /** Reads a value as the library does, or by the builder of its type where it has no other way to be made. */
  private static Object built(JavaType type, JsonNode value) throws Exception {
    if (type.isCollectionLikeType() && value.isArray() && type.getRawClass() == List.class) {
      List<Object> elements = new ArrayList<>();
      for (JsonNode element : value) {
        elements.add(built(type.getContentType(), element));
      }
      return elements;
    }
    if (type.getRawClass() == UpdateOptions.class) {
      return MAPPER.convertValue(value, UpdateOptionsImpl.class);
    }
    Optional<Method> making = Stream.of(type.getRawClass().getMethods())
        .filter(each -> each.getName().equals("builder") && Modifier.isStatic(each.getModifiers()))
        .findFirst();
    if (making.isEmpty() || !value.isObject() || read(type, value)) {
      if (type.getRawClass() == boolean.class && !value.isBoolean()
          || type.isPrimitive() && type.getRawClass() != boolean.class && !value.isNumber()) {
        throw new IllegalArgumentException(value + " is no " + type);
      }
      return MAPPER.convertValue(value, type);
    }
    Object builder = making.get().invoke(null);
    for (Map.Entry<String, JsonNode> field : value.properties()) {
      Method setter = Stream.of(builder.getClass().getMethods())
          .filter(each -> each.getName().equals(field.getKey()) && each.getParameterCount() == 1)
          .findFirst()
          .orElseThrow(() -> new IllegalArgumentException(type + " has no " + field.getKey()));
      setter.setAccessible(true);
      JavaType of = MAPPER.constructType(setter.getGenericParameterTypes()[0]);
      setter.invoke(builder, of.getRawClass() == byte[].class
          ? field.getValue().asText().getBytes(StandardCharsets.UTF_8)
          : MAPPER.convertValue(field.getValue(), of));
    }
    Method build = builder.getClass().getMethod("build");
    build.setAccessible(true);
    return build.invoke(builder);
  }

  /** Whether Jackson knows how to make the type. */
  private static boolean read(JavaType type, JsonNode value) {
    try {
      return !type.getRawClass().getSimpleName().equals("SchemaInfo") && MAPPER.convertValue(value, type) != null;
    } catch (IllegalArgumentException unknown) {
      return false;
    }
  }

  // -- answers --------------------------------------------------------------------------------------------------

  private static ObjectMapper mapper() {
    SimpleModule readable = new SimpleModule();
    readable.addSerializer(MessageId.class, new JsonSerializer<>() {
      @Override
      public void serialize(MessageId id, JsonGenerator to, SerializerProvider with) throws IOException {
        MessageIdImpl parts = (MessageIdImpl) id;
        to.writeStartObject();
        to.writeNumberField("ledgerId", parts.getLedgerId());
        to.writeNumberField("entryId", parts.getEntryId());
        to.writeNumberField("partitionIndex", parts.getPartitionIndex());
        if (id instanceof BatchMessageIdImpl batch) {
          to.writeNumberField("batchIndex", batch.getBatchIndex());
        }
        to.writeEndObject();
      }
    });
    readable.addSerializer(Message.class, new JsonSerializer<>() {
      @Override
      public void serialize(Message message, JsonGenerator to, SerializerProvider with) throws IOException {
        to.writeStartObject();
        to.writeObjectField("id", message.getMessageId());
        to.writeStringField("key", message.getKey());
        to.writeObjectField("properties", new TreeMap<>(message.getProperties()));
        to.writeStringField("data", new String(message.getData(), StandardCharsets.UTF_8));
        to.writeEndObject();
      }
    });
    readable.addSerializer(byte[].class, new JsonSerializer<>() {
      @Override
      public void serialize(byte[] bytes, JsonGenerator to, SerializerProvider with) throws IOException {
        to.writeString(new String(bytes, StandardCharsets.UTF_8));
      }
    });
    // A set has no order.
    readable.addSerializer(Set.class, new JsonSerializer<>() {
      @Override
      public void serialize(Set set, JsonGenerator to, SerializerProvider with) throws IOException {
        List<Object> elements = new ArrayList<>(set);
        elements.sort(Comparator.comparing(String::valueOf));
        to.writeObject(elements);
      }
    });
    return ObjectMapperFactory.getMapperWithIncludeAlways().getObjectMapper().copy()
        .registerModule(readable)
        .disable(SerializationFeature.FAIL_ON_EMPTY_BEANS)
        .enable(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS);
  }

  // -- the methods there are ------------------------------------------------------------------------------------

  private static Set<String> list() {
    Set<String> found = new TreeSet<>();
    for (Method group : PulsarAdmin.class.getMethods()) {
      Class<?> type = group.getReturnType();
      boolean older = group.getName().equals("sink") || group.getName().equals("source");
      if (Modifier.isStatic(group.getModifiers()) || group.getParameterCount() > 0 || !type.isInterface() || older) {
        continue;
      }
      Map<String, List<Method>> named = Stream.of(type.getMethods())
          .filter(each -> !Modifier.isStatic(each.getModifiers()))
          .collect(Collectors.groupingBy(Method::getName));
      named.forEach((name, overloads) -> {
        if (name.endsWith("Async") && named.containsKey(name.substring(0, name.length() - "Async".length()))) {
          return;
        }
        List<Method> current =
            overloads.stream().filter(each -> !each.isAnnotationPresent(Deprecated.class)).toList();
        if (current.isEmpty()) {
          found.add(group.getName() + " " + name + " -1");
        }
        current.forEach(each -> found.add(group.getName() + " " + name + " " + each.getParameterCount()));
      });
    }
    return found;
  }
}
