import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpServletResponseWrapper;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.inmemory.InMemoryCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.sparkproject.jetty.ee10.servlet.ServletContextHandler;
import org.sparkproject.jetty.ee10.servlet.ServletHolder;
import org.sparkproject.jetty.server.Server;

/**
 * Serves Iceberg's REST catalog on a free port of this machine, with its tables as files below a location, and prints its
 * address. Ends with its standard input.
 */
public final class RestCatalog {
    public static void main(String[] arguments) throws Exception {
        InMemoryCatalog catalog = new InMemoryCatalog();
        catalog.initialize("rest", Map.of("warehouse", arguments[0], "io-impl", HadoopFileIO.class.getName()));
        ServletContextHandler context = new ServletContextHandler("/");
        context.addServlet(new ServletHolder(new BehindGateway(new RESTCatalogAdapter(catalog))), "/*");
        Server server = new Server(new InetSocketAddress("127.0.0.1", 0));
        server.setHandler(context);
        server.start();
        System.out.println("http://127.0.0.1:" + server.getURI().getPort());
        System.in.read();
        server.stop();
        System.exit(0);
    }

    /**
     * As behind a gateway that answers a request for a change itself, if its header X-Gateway says so: "STATUS before" the
     * catalog has the request, or "STATUS after" the catalog has made the change.
     */
    private static final class BehindGateway extends RESTCatalogServlet {
        BehindGateway(RESTCatalogAdapter adapter) {
            super(adapter);
        }

        @Override
        protected void doPost(HttpServletRequest request, HttpServletResponse response) throws IOException {
            String gateway = request.getHeader("X-Gateway");
            if (gateway == null) {
                super.doPost(request, response);
                return;
            }
            if (gateway.endsWith(" after")) {
                PrintWriter unread = new PrintWriter(new StringWriter());
                super.doPost(request, new HttpServletResponseWrapper(response) {
                    @Override
                    public PrintWriter getWriter() {
                        return unread;
                    }
                });
                if (response.getStatus() != HttpServletResponse.SC_OK) {
                    throw new IllegalStateException("the catalog has not made the change");
                }
            }
            response.setStatus(Integer.parseInt(gateway.substring(0, 3)));
        }
    }
}
